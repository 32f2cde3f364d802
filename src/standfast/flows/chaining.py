"""Keys on their way through other processes: signed, so that they are known again, and nobody can make them up.

Another application has keys of the same names in a store of its own, and a caller can write what it likes. So a key
that comes from outside counts only if it was signed with the secret of the store that its line lies in. Others are
handed on as they are: they may be known where the way leads next.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import Struct

from standfast.codec import Codec
from standfast.stores.protocol import Decision, Put

if TYPE_CHECKING:
    from standfast.flows.arrival import Address
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

SIGNED: Final = "signed"
"""What a key begins with that came from outside: then its signature, and then the key. Those of lines never do."""


class SecretRecord(Struct, frozen=True):
    """What the keys of one store are signed with."""

    secret: str


SECRETS: Final[Codec[SecretRecord]] = Codec(SecretRecord, what="the secret of chains")


@final
class Chains:
    """Signs keys, and knows them again."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret: Final = bytes.fromhex(secret)

    @classmethod
    async def load(cls, scope: Scope) -> Chains:
        """Return what signs the keys of a store, the same in all its processes."""
        key = scope.key("chain-secret")

        def decide(seen: Snapshot) -> Decision[str]:
            if (found := seen.get(key)) is not None:
                return Decision(SECRETS.decode(found.value).secret)
            made = secrets.token_hex(32)
            return Decision(made, (Put(key, SECRETS.encode_own(SecretRecord(made))),))

        return cls((await scope.update([key], decide)).answer)

    def signed(self, address: Address) -> Address:
        """Return a key as it is sent: one that came from outside as it came."""
        return address if address[:1] == (SIGNED,) else (SIGNED, self._signature(address), *address)

    def known(self, address: Address) -> Address:
        """Return a key as its line has it, if it was signed here; otherwise as it is."""
        if address[:1] != (SIGNED,):
            return address
        signature, own = "".join(address[1:2]), address[2:]
        return own if hmac.compare_digest(signature.encode(), self._signature(own).encode()) else address

    def _signature(self, address: Address) -> str:
        return blake2b(msgspec.json.encode(address), key=self._secret, digest_size=16).hexdigest()
