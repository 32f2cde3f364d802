"""A presence: the heartbeat of one process on one store.

Whatever a process holds is anchored to its presence, so that keeping it all costs one small write now and then, and
all of it falls together when the process dies. A presence that has lapsed never comes back: it is replaced by another
one with another name. So "that presence is gone" cannot cease to be true, and needs no guard.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant, later
from standfast.codec import Codec
from standfast.locks.driving.removing import remove
from standfast.stores.protocol import Decision, Put
from standfast.stores.proving import proof_of

if TYPE_CHECKING:
    from standfast.clock import Clock
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot, Store

MARGIN: Final = 0.1
"""The part of a lease that is left unused: a holder stops by its own clock this much before the store's does."""


class PresenceRecord(Struct, frozen=True, omit_defaults=True):
    """What others see of a process that is present."""

    process: int
    host: str
    program: str
    lease: float
    lifeline: str = ""


PRESENCES: Final[Codec[PresenceRecord]] = Codec(PresenceRecord, what="a presence")


def this_process(lease: float, lifeline: str) -> PresenceRecord:
    """Describe this process to those who wait for it."""
    program = sys.argv[0].rpartition("/")[2] if sys.argv else ""
    return PresenceRecord(os.getpid(), socket.gethostname()[:100], program[:100], lease, lifeline)


@final
class Presence:
    """One presence, renewed by whoever calls :meth:`renew` often enough.

    Attributes:
        name: Unlike any other, also of the same process.
        lease: For how many seconds the store believes in it after each renewal.
        deadline: Until when, by this process's own clock, it can rely on being taken for alive. Reckoned from before
            the request that renewed it was sent, so that a slow answer makes it too early and never too late.
        proof: Where others see by a session whether this process lives: what it knows of that. None: they do not.
        users: How many entries are anchored to it. Without any it need not be renewed.
        over: It is known to have lapsed, for good.
        is_kept: Somebody renews it.
        is_watched: Somebody looks at its deadline.
        is_told: Everybody who hangs on it was told that it is over.
    """

    __slots__ = (
        "_clock",
        "_is_made",
        "_value",
        "deadline",
        "is_kept",
        "is_told",
        "is_watched",
        "key",
        "lease",
        "name",
        "over",
        "proof",
        "renewed_at",
        "users",
    )

    def __init__(self, scope: Scope, number: int, record: PresenceRecord, clock: Clock) -> None:
        self.key: Final[RecordKey] = scope.presence.child(str(number))
        self.name: Final = f"{scope.presence_name}.{number}"
        self.lease: Final = record.lease
        self._value: Final = PRESENCES.encode(record)
        self._clock: Final = clock
        self.proof: Final = proof_of(record.lifeline)
        self._is_made = self.over = self.is_kept = self.is_watched = self.is_told = False
        self.users = 0
        self.renewed_at = self.deadline = clock.elapsed()

    def left(self) -> float:
        """Return the seconds for which it can still be relied on; nothing or less: not at all."""
        if self.over:
            return -1.0
        left = (self.deadline - self._clock.elapsed()) / MICROSECONDS
        return left if self.proof is None else min(left, self.proof.left())

    async def until_proven(self) -> None:
        """Wait while others cannot see that this process lives. Begin nothing before; then look at :meth:`left`."""
        if self.proof is not None and not self.proof.is_tied:
            await self.proof.until_tied()

    async def renew(self, store: Store) -> bool:
        """Make or prolong it; False if it has lapsed, and then it is over for good."""
        asked_at = self._clock.elapsed()
        may_create = not self._is_made

        def decide(seen: Snapshot) -> Decision[bool]:
            if seen.get(self.key) is None and not may_create:
                return Decision(answer=False)
            put = Put(self.key, self._value, seen.version(self.key), expires_at=later(seen.at, self.lease))
            return Decision(answer=True, changes=(put,))

        renewed = (await store.update([self.key], decide)).answer
        if renewed:
            self._is_made = True
            self.renewed_at = asked_at
            self.deadline = Instant(asked_at + round(self.lease * (1 - MARGIN) * MICROSECONDS))
        else:
            self.over = True
        return renewed

    async def end(self, store: Store) -> None:
        """Give it up at once: whatever is anchored to it falls."""
        self.over = True
        await remove(store, self.key)
