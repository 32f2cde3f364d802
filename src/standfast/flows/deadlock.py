"""Deadlocks of requests: each holds what the next one waits for. Keys that are held elsewhere come along, signed.

A request takes its key first and then room at its limits, in one order that is the same for all actions. So requests
that only wait for these never wait for each other. A circle needs one that calls another and waits for it: A has a key
and waits for room, B has the room and calls C, and C waits for that key. The one that is called is refused then.

This process knows what waits here. A circle over several processes, or through a limit that lets in several, is not
seen: there the time is bounded for which one waits that was called.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import Struct

from standfast.codec import Codec
from standfast.errors import WaitsForItselfError
from standfast.flows.request import Address
from standfast.locks.deadlock import shortest_cycle
from standfast.stores.protocol import Decision, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot


# --- keys on their way through other processes: signed, so that they are known again, and cannot be made up --------
#
# Another application has keys of the same names in a store of its own, and a caller can write what it likes. So a key
# that comes from outside counts only if it was signed with the secret of the store that its line lies in. Others are
# handed on as they are: they may be known where the way leads next.

SIGNED: Final = "signed"
"""What a key begins with that came from outside: then its signature, and then the key. Those of lines never do."""


class SecretRecord(Struct, frozen=True):
    """What the keys of one store are signed with."""

    secret: str


SECRETS: Final[Codec[SecretRecord]] = Codec(SecretRecord, what="the secret of chains")


@final
class ChainSigner:
    """Signs keys, and knows them again."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret: Final = bytes.fromhex(secret)

    @classmethod
    async def load(cls, scope: Scope) -> ChainSigner:
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


# --- circles of requests: each holds what the next one waits for, so that none of them would ever go on ------------

LONGEST: Final = 300.0
"""Seconds that a request waits which another one waits for, where it was declared to wait as long as it takes."""


class BlockedRequest(Struct, frozen=True, eq=False):
    """One that waits, and holds something meanwhile, or those do who wait for it.

    Attributes:
        id: The request.
        wants: What it waits for: the key of a line, or a limit that lets in one at a time.
        label: How that is called for people.
        holds: What is not let go of while it waits.
        is_called: Whether another request waits for it.
        refuse: Ends its waiting; None: it cannot be refused any more.
    """

    id: str
    wants: Address
    label: str
    holds: tuple[Address, ...]
    is_called: bool
    refuse: Callable[[WaitsForItselfError], None] | None


@final
class DeadlockSearch:
    """Knows who waits in this process and holds something, and refuses one of several that wait for each other."""

    __slots__ = ("_holding", "_waiting")

    def __init__(self) -> None:
        self._waiting: Final[dict[str, BlockedRequest]] = {}
        self._holding: Final[dict[Address, dict[str, BlockedRequest]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, waiter: BlockedRequest) -> None:
        """Note that a request waits; if that closes a circle, refuse the newest one of it that was called."""
        self._waiting[waiter.id] = waiter
        for each in waiter.holds:
            self._holding.setdefault(each, {})[waiter.id] = waiter
        cycle = shortest_cycle(waiter.id, self._blockers)
        for request_id in (*cycle[:1], *reversed(cycle[1:])):
            one = self._waiting[request_id]
            if one.is_called and one.refuse is not None:
                self.go_on(one.id)
                one.refuse(WaitsForItselfError(one.label, one.id))
                return

    def go_on(self, request_id: str) -> None:
        """Note that a request waits no longer, whether or not it did."""
        waiter = self._waiting.pop(request_id, None)
        if waiter is None:
            return
        for each in waiter.holds:
            holding = self._holding.get(each)
            if holding is not None:
                holding.pop(request_id, None)
                if not holding:
                    del self._holding[each]

    def _blockers(self, request_id: str) -> Iterable[str]:
        return self._holding.get(self._waiting[request_id].wants, ())
