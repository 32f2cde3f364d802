"""Which keys are held by those who wait for a request, as a header: so nobody waits for itself across servers."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

import msgspec

from standfast.errors import InvalidHeaderError
from standfast.flows.chaining import SIGNED

if TYPE_CHECKING:
    from standfast.flows.arrival import Address
    from standfast.flows.request import Request

HEADER: Final = "Standfast-Chain"
LONGEST: Final = 8_192
MOST: Final = 32
"""How many requests may wait for each other in a row."""

_CHAIN: Final = msgspec.json.Decoder(tuple[tuple[str, ...], ...])


def chain_headers(request: Request) -> dict[str, str]:
    """Return the header that an action sends along when it calls another Standfast application and waits.

    With it, a request that would wait for a key that one of its callers holds is refused at once, with
    :class:`~standfast.errors.WaitsForItselfError`, and does not wait for its time to run out. Keys are signed: those of
    another store, and those that somebody has made up, refuse nothing.
    """
    if not request.chain:
        return {}
    sent = [address[1:] for address in request.signed_chain]
    return {HEADER: base64.urlsafe_b64encode(msgspec.json.encode(sent)).decode()}


def read_chain(header: str) -> tuple[Address, ...]:
    """Return what a header says, marked as coming from outside.

    Raises:
        InvalidHeaderError: It says nothing that can be read.
    """
    if not header:
        return ()
    if len(header) > LONGEST:
        raise InvalidHeaderError(HEADER, f"has more than {LONGEST} characters")
    try:
        chain = _CHAIN.decode(base64.b64decode(header.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise InvalidHeaderError(HEADER, "was not made by chain_headers()") from None
    if len(chain) > MOST:
        raise InvalidHeaderError(HEADER, f"names more than {MOST} keys")
    return tuple((SIGNED, *address) for address in chain)
