"""Presence and heartbeat: what a process holds lives by its presence, which the heartbeat renews from its own thread.

The heartbeat has a connection of its own too, so a renewal waits neither for the user's code nor behind the user's
commits. A renewal that fails is tried again until the presence's own deadline; then the holds that live by it are told.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, field, structs

from standfast.clock import MICROSECONDS, Instant, cpu_of, later, seconds_between
from standfast.codec import Codec
from standfast.errors import LeaseTooShortError, StandfastError, StoreError
from standfast.events import PresenceLost, PresenceNotRenewed, SlowRoundTrip
from standfast.locks.line import OfPresence
from standfast.stores.liveness import liveness_of, visible_token
from standfast.stores.protocol import Decision, Delete, Put
from standfast.threads import run_beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Clock
    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot, Store


# --- what to do about a presence that ends too far ahead: the store's clock was set back since it was renewed ------
#
# A process that lives renews its presence soon, by the new clock. One that died before would be taken for alive until
# the clock has made up for the step. But no presence is made to last longer than its lease, so an end that lies farther
# ahead is worth nothing, and the process that sees it brings it back to a lease from now.

FARTHEST: Final = 2.0
"""How many leases ahead an end may lie before it is brought back: servers that take turns may differ a little."""


async def end_of(store: Store, record: Record, presence: PresenceRecord, now: Instant) -> Instant:
    """Return when a presence ends, and bring that back to a lease from now if it lies too far ahead."""
    end = record.expires_at
    if end is None or seconds_between(now, end) <= FARTHEST * presence.lease:
        return end or now
    sooner = later(now, presence.lease)
    # If this is refused, the presence was renewed, ended or brought back meanwhile: the next look finds out.
    await store.commit(Put(record.key, record.value, record.version, expires_at=sooner))
    return sooner


# --- taking a record away, whatever version it is at ---------------------------------------------------------------


async def remove(store: Store, key: RecordKey) -> None:
    """Delete the record at ``key``, if there is one."""

    def decide(seen: Snapshot) -> Decision[None]:
        record = seen.get(key)
        return Decision(None, () if record is None else (Delete(key, record.version),))

    await store.update([key], decide)


# --- a presence: what others see of one process on one store ------------------------------------------------------
#
# Whatever a process holds is anchored to its presence, so that keeping it all costs one small write now and then, and
# all of it falls together when the process dies. A presence that has lapsed never comes back: it is replaced by another
# one with another name. So "that presence is gone" cannot cease to be true, and needs no guard.

MARGIN: Final = 0.1
"""The part of a lease that is left unused: a holder stops by its own clock this much before the store's does."""


class LoopReport(Struct, frozen=True, omit_defaults=True):
    """How the event loop of a worker was lately, as the heartbeat tells from a thread of its own.

    Attributes:
        worst: Seconds of the longest hold-up in the last minutes: at least so long, and less than 0.1 s longer.
        ago: How many seconds ago that ended, when this was written.
        times: How often it was held up for half a second or longer in that time.
        stands_for: For how many seconds it has stood still when this was written, half a second at least; 0: it runs.
    """

    worst: float = 0.0
    ago: float = 0.0
    times: int = 0
    stands_for: float = 0.0


class PresenceRecord(Struct, frozen=True, omit_defaults=True):
    """What others see of a process that is present. ``loop``: if it is a worker, how its event loop was lately."""

    process: int
    host: str
    program: str
    lease: float
    liveness_token: str = field(default="", name="lifeline")
    loop: LoopReport | None = None


PRESENCES: Final[Codec[PresenceRecord]] = Codec(PresenceRecord, what="a presence")


def this_process(lease: float, liveness_token: str) -> PresenceRecord:
    """Describe this process to others."""
    folder, _, program = sys.argv[0].rpartition("/") if sys.argv else ("", "", "")
    if program == "__main__.py":  # python -m: the package says more
        program = folder.rpartition("/")[2]
    return PresenceRecord(os.getpid(), socket.gethostname()[:100], program[:100], lease, liveness_token)


@final
class Presence:
    """One presence: alive as long as :meth:`renew` is called often enough.

    Attributes:
        name: Unlike any other, also of the same process.
        anchor: What an entry says that lives by it.
        lease: For how many seconds the store believes in it after each renewal.
        deadline: Until when, by this process's own clock, it can rely on being taken for alive. Reckoned from before
            the request that renewed it was sent, so that a slow answer makes it too early and never too late.
        proof: Where others see by a session whether this process lives: what it knows of that. None: they do not.
        users: How many entries are anchored to it. Without any it need not be renewed.
        over: It is known to have lapsed, for good.
        problem: Why it could not be renewed the last time, in the words of the store; empty if it was.
        is_kept: The heartbeat renews it.
        is_watched: Its deadline is watched.
        is_told: All that hangs on it was told that it is over.
        was_starved: It was not renewed because the code of this process let nothing else run, the heartbeat's thread
            included: that is no fault of the store, and the process was not suspended.
    """

    __slots__ = (
        "_clock",
        "_cpu",
        "_due",
        "_is_made",
        "_record",
        "_report",
        "_starved",
        "_value",
        "anchor",
        "deadline",
        "is_kept",
        "is_told",
        "is_watched",
        "key",
        "lease",
        "name",
        "over",
        "problem",
        "proof",
        "renewed_at",
        "users",
    )

    def __init__(
        self,
        scope: Scope,
        number: int,
        record: PresenceRecord,
        clock: Clock,
        report: Callable[[], LoopReport | None] = lambda: None,
    ) -> None:
        self.key: Final[RecordKey] = scope.presence.child(str(number))
        self.name: Final = f"{scope.presence_name}.{number}"
        self.anchor: Final = OfPresence(self.name)
        self.lease: Final = record.lease
        self._record, self._report = record, report
        self._value: Final = PRESENCES.encode(record)
        self._clock: Final = clock
        self.proof: Final = liveness_of(record.liveness_token)
        self._due, self._cpu, self._starved = math.inf, 0.0, False
        self._is_made = self.over = self.is_kept = self.is_watched = self.is_told = False
        self.users = 0
        self.problem = ""
        self.renewed_at = self.deadline = clock.elapsed()

    def left(self, now: Instant | None = None) -> float:
        """Return the seconds for which it can still be relied on; nothing or less: not at all.

        ``now`` is what the process's own clock said a moment ago, if it was just read.
        """
        if self.over:
            return -1.0
        left = (self.deadline - (self._clock.elapsed() if now is None else now)) / MICROSECONDS
        return left if self.proof is None else min(left, self.proof.left())

    def rests(self, due: float) -> None:
        """Say that the heartbeat's thread does nothing until an instant; then call :meth:`goes_on`."""
        self._due, self._cpu = due, cpu_of(self._clock)

    def goes_on(self) -> None:
        """Say that the heartbeat's thread goes on, perhaps much later."""
        self._starved = self.was_starved
        self._due = math.inf

    @property
    def was_starved(self) -> bool:
        """Return True if this process has worked instead of resting, and did not let its heartbeat go on."""
        late, cpu = (self._clock.elapsed() - self._due) / MICROSECONDS, cpu_of(self._clock) - self._cpu
        return self._starved or (late > self.lease / 2 and cpu > late / 2)

    @property
    def is_proven(self) -> bool:
        """Whether others can see that this process lives, or never could: :meth:`until_proven` waits for nothing."""
        return self.proof is None or self.proof.is_attached

    async def until_proven(self) -> None:
        """Wait while others cannot see that this process lives. Begin nothing before; then look at :meth:`left`."""
        if self.proof is not None and not self.proof.is_attached:
            await self.proof.until_attached()

    async def renew(self, store: Store) -> bool:
        """Make or prolong it; False if it has lapsed, and then it is over for good."""
        asked_at = self._clock.elapsed()
        may_create = not self._is_made
        loop = self._report()
        value = self._value if loop is None else PRESENCES.encode(structs.replace(self._record, loop=loop))

        def decide(seen: Snapshot) -> Decision[bool]:
            if seen.get(self.key) is None and not may_create:
                return Decision(answer=False)
            put = Put(self.key, value, seen.version(self.key), expires_at=later(seen.at, self.lease))
            return Decision(answer=True, changes=(put,))

        renewed = (await store.update([self.key], decide)).answer
        if renewed:
            self._is_made, self._starved, self.problem = True, False, ""
            self.renewed_at = asked_at
            self.deadline = Instant(asked_at + round(self.lease * (1 - MARGIN) * MICROSECONDS))
        else:
            self.over = True
        return renewed

    @property
    def lapse(self) -> str:
        """Why what hangs on it is lost, when it is over: what kept this process from renewing it, if that is known."""
        if self.problem:
            return f"{NOT_RENEWED}: {self.problem}"
        if self.proof is not None and self.proof.left() <= 0:
            return f"{NOT_RENEWED}: the store could not be reached for longer than its grace"
        return f"{NOT_RENEWED}: its lease lapsed"

    async def end(self, store: Store) -> None:
        """Give it up at once: whatever is anchored to it falls."""
        self.over = True
        await remove(store, self.key)


# --- the heartbeat: renews the presences of one space from a thread of its own, however busy the event loop is -----

NOT_RENEWED: Final = "this process could not renew it in time"
"""How the reason begins for which a hold is lost whose presence has lapsed."""

HEARTBEATS: Final = 3
"""How often a presence is renewed in one lease, if all goes well."""

SLOW_IN_A_ROW: Final = 3
"""How many round trips one after another must be too slow for a lease before the lease is taken for too short."""

TRIES: Final = 20
"""How often a renewal that fails is tried in one lease."""


@final
class Heartbeat:
    """Keeps the presences of one space alive while anything is anchored to them.

    ``lost`` is called on the space's own loop with each presence that can no longer be relied on, once.

    Attributes:
        loop_report: Says how the event loop was lately; a worker sets it. It is called from the heartbeat's thread.
    """

    def __init__(
        self, scope: Scope, clock: Clock, hooks: Hooks, heartbeat: float | None, lost: Callable[[Presence], None]
    ) -> None:
        self._scope, self._clock, self._hooks, self._lost = scope, clock, hooks, lost
        self._heartbeat: Final = heartbeat
        self._loop: Final = asyncio.get_running_loop()
        self._presences: Final[dict[float, Presence]] = {}
        self._making: Final[dict[float, asyncio.Lock]] = {}
        self._watches: Final[dict[Presence, tuple[Callable[[], None], ...]]] = {}
        self._made = 0
        self.loop_report: Callable[[], LoopReport] | None = None
        self._rounds = _HeartbeatThread(self)

    async def join(self, lease: float) -> Presence:
        """Return a presence with that lease that can be relied on for a while; call :meth:`leave` when done."""
        if (presence := self.try_join(lease)) is not None:
            return presence
        async with self._making.setdefault(lease, asyncio.Lock()):
            presence = self._presences.get(lease)
            # A renewal that took too long may have been answered after all were told that it had failed.
            if presence is not None and not presence.over and presence.left() < lease / 2:
                renewed = await presence.renew(self._scope.store)
                if not renewed or presence.left() <= 0:
                    self.tell(presence)
            if presence is None or presence.over:
                presence = await self._new(lease)
        presence.users += 1
        self._keep(presence)
        return presence

    def try_join(self, lease: float, now: Instant | None = None) -> Presence | None:
        """Return such a presence if there is one; None: it has to be made or renewed first, see :meth:`join`."""
        presence = self._presences.get(lease)
        if presence is None or presence.left(now) < lease / 2:
            return None
        presence.users += 1  # first: the heartbeat's thread looks at it before it stops keeping the presence
        if not (presence.is_kept and presence.is_watched):
            self._keep(presence)
        return presence

    def _keep(self, presence: Presence) -> None:
        """Renew and watch a presence from now on, if that is not done yet."""
        if not presence.is_kept:
            self._rounds.begin(presence)
        if not presence.is_watched:
            self._watch(presence)

    @staticmethod
    def leave(presence: Presence) -> None:
        """Say that one entry less is anchored to a presence. Without any it is no longer renewed."""
        presence.users -= 1

    async def _new(self, lease: float) -> Presence:
        store, took = self._scope.store, 0.0
        presence: Presence | None = None
        for _ in range(SLOW_IN_A_ROW):
            if presence is None or presence.left() <= 0:  # by now the first may have lapsed, for good
                self._made = number = self._made + 1  # another lease may be joined meanwhile
                here = this_process(lease, await visible_token(store))
                presence = Presence(self._scope, number, here, self._clock, self._report)
            asked_at = self._clock.elapsed()
            await presence.renew(store)
            if presence.left() >= lease / 2:
                self._presences[lease] = presence
                return presence
            took = (self._clock.elapsed() - asked_at) / MICROSECONDS
            at, name = self._clock.wall(), repr(store)
            self._hooks.emit(SlowRoundTrip(at=at, store=name, seconds=took, lease=lease))
        if presence is not None:
            await presence.end(store)
        raise LeaseTooShortError(lease, f"{SLOW_IN_A_ROW} round trips to the store in a row took about {took:.3g} s")

    def _report(self) -> LoopReport | None:
        return None if self.loop_report is None else self.loop_report()

    # --- the deadline, on the space's own loop -------------------------------------------------------------------

    def _watch(self, presence: Presence) -> None:
        """Look at a presence again at its deadline, whatever has become of its renewal, or when its proof is lost."""
        for end in self._watches.pop(presence, ()):
            end()
        presence.is_watched = presence.users > 0 and not presence.is_told
        if not presence.is_watched:
            return
        left, look = presence.left(), functools.partial(self._watch, presence)
        if left <= 0:
            self.tell(presence)
            return
        ends = [self._loop.call_later(left, look).cancel]
        if presence.proof is not None:
            ends.append(presence.proof.listen(look))
        self._watches[presence] = tuple(ends)

    def tell(self, presence: Presence) -> None:
        """Give a presence up. Call it on the space's own loop."""
        presence.over = True
        if presence.is_told:
            return
        presence.is_told = True
        if self._presences.get(presence.lease) is presence:
            del self._presences[presence.lease]
        self._hooks.emit(PresenceLost(at=self._clock.wall(), store=str(self._scope.store), presence=presence.name))
        self._lost(presence)

    # --- renewal, on the heartbeat's own loop --------------------------------------------------------------------

    async def keep(self, presence: Presence, store: Store) -> None:
        """Renew a presence for as long as anything is anchored to it."""
        every = presence.lease / HEARTBEATS
        if self._heartbeat is not None and self._heartbeat <= presence.lease / 2:
            every = self._heartbeat
        due = presence.renewed_at + every * MICROSECONDS
        while True:
            presence.rests(due)
            await asyncio.sleep(max(0.0, (due - self._clock.elapsed()) / MICROSECONDS))
            presence.goes_on()
            if self._loop.is_closed():  # nothing is held any more
                return
            if presence.users <= 0 or presence.over:
                # In this order: an entry that is anchored to it counts itself first, then looks whether it is kept.
                presence.is_kept = False
                if presence.users <= 0 or presence.over:
                    return
                presence.is_kept = True
            due = self._clock.elapsed() + presence.lease / TRIES * MICROSECONDS
            if await self._renew(presence, store):
                due = presence.renewed_at + every * MICROSECONDS

    async def _renew(self, presence: Presence, store: Store) -> bool:
        try:
            store.liveness_token()  # holds it anew, should something have made this process let go of it
            renewed = await presence.renew(store)
        except Exception as problem:  # noqa: BLE001 -- whatever it is, it is tried again until the deadline
            said = problem.problem if isinstance(problem, StoreError) else ""
            presence.problem = f"{type(problem).__name__}: {said}" if said else type(problem).__name__
            self._hooks.emit(
                PresenceNotRenewed(
                    at=self._clock.wall(),
                    store=str(store),
                    presence=presence.name,
                    problem=presence.problem,
                    left=presence.left(),
                )
            )
            return False
        if not renewed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.tell, presence)
        return renewed

    async def aclose(self) -> None:
        """Stop renewing and give up every presence, so that others need not wait for it to lapse."""
        await self._rounds.stop()
        for end in [end for ends in self._watches.values() for end in ends]:
            end()
        for presence in tuple(self._presences.values()):
            if presence.users > 0:  # something is still held by it, and it must lapse before others may go on
                continue
            try:
                await presence.end(self._scope.store)
            except StandfastError:  # it lapses by itself
                continue
        self._presences.clear()

    async def open_store(self) -> Store:
        """Open the heartbeat's own connection."""
        return await self._scope.store.another()


@final
class _HeartbeatThread:
    """The thread of the heartbeat: a loop with a task for each presence in use."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat: Final = heartbeat
        self._beside: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted: Final[list[Presence]] = []
        self._tasks: Final[dict[Presence, asyncio.Task[Any]]] = {}
        self._changed: asyncio.Event | None = None
        self._stopping = False

    def begin(self, presence: Presence) -> None:
        """Start keeping a presence. Called on the space's loop."""
        presence.is_kept = True
        self._wanted.append(presence)
        if self._beside is None or self._beside.done():
            self._beside = run_beside(self._main, "keeper")
        else:
            self._wake()

    async def stop(self) -> None:
        """End all of it. Called on the space's loop."""
        self._stopping = True
        if self._beside is not None:
            self._wake()
            await asyncio.wait({self._beside})

    def _wake(self) -> None:
        loop, changed = self._loop, self._changed
        if loop is not None and changed is not None:
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:  # its loop has just been closed
                return

    async def _main(self) -> None:
        self._changed = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        store: Store | None = None
        try:
            while not self._stopping:
                if store is None:
                    try:
                        store = await self._heartbeat.open_store()
                    except StandfastError:
                        loop.call_later(0.1, self._wake)
                while store is not None and self._wanted:
                    self._start(self._wanted.pop(), store)
                await self._changed.wait()
                self._changed.clear()
        finally:
            self._loop = None
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if store is not None:
                await store.aclose()

    def _start(self, presence: Presence, store: Store) -> None:
        running = self._tasks.get(presence)
        if running is None or running.done():
            task = self._tasks[presence] = asyncio.create_task(self._heartbeat.keep(presence, store))
            task.add_done_callback(
                lambda _: self._tasks.pop(presence, None) if self._tasks.get(presence) is task else None
            )
