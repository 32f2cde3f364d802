"""The lines of one space, as this process takes part in them: its waiters and holds, polling, reaping and eviction.

A grant is made by the process that leaves. The waiter's process is notified and reads the line. Now and then it polls
by itself, in case a notification was lost, and reaps the entries in front: one whose presence has lapsed, or whose
process has died, is dropped by the first process that notices.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import structs

from standfast.clock import MICROSECONDS, later, seconds_between
from standfast.errors import StandfastError
from standfast.events import EntriesFell
from standfast.locks.heartbeat import PRESENCES, Heartbeat, end_of, remove
from standfast.locks.inspect import find_waiter
from standfast.locks.line import Rules, Until, advance, presence_of
from standfast.locks.line_driver import LocalLine
from standfast.locks.line_records import HELD, Leave, Left, LineKeys, LockSpec, Reap, presences_of
from standfast.locks.mutex_line import is_of_mutex
from standfast.stores.liveness import ForkGuard
from standfast.stores.protocol import Decision, Delete, Put, Wake
from standfast.stores.watch import TakesAtOnce

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from standfast.clock import Clock, Instant
    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.locks.heartbeat import Presence
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot, Watch


POLL_EVERY: Final = 0.5
"""Seconds between two polls of a line in which this process waits, if nothing wakes it earlier."""

FIRST_POLL: Final = 0.1
"""Seconds that a waiter near the front has waited before its first poll: most turns come sooner, and need none."""

FIRST_POLL_AFAR: Final = 0.2
"""The same where a poll is three round trips to a server."""

PATIENCE: Final = 4
"""How many times as long as others waited lately one waits before its first poll, where a poll is a round trip."""

NEW: Final = 1.0
"""Seconds for which a hold counts as new."""

LATEST_POLL: Final = 1.0
"""Seconds after which one polls in any case."""

PROBE_EVERY: Final = 0.05
"""Seconds between two looks at the liveness tokens of those in front, where the store can see a process die."""

POLLS_PER_SECOND: Final = 500
"""With very many lines to poll, the polls get rarer, so that they never cost more than this."""

REMEMBERED: Final = 1_000
"""How many lines that are not in use are kept in mind: what was last seen of them saves a round trip."""

MOST_IN_A_TURN: Final = 32
"""How many lines are looked at in one turn of the event loop."""

FORGOTTEN: Final = 4
"""How many lines are looked at, whether they can be forgotten, for each new one."""

BODIES_END_WITHIN: Final = 5.0
"""Seconds that closing a space waits for the bodies of holds, which it has cancelled, to end."""

MOST_READ: Final = 100
"""The most records that are read at once."""

CLEARED_WITHIN: Final = 10.0
"""Seconds in which a process that let counted holders fall has deleted their records. Then another one does it."""

CANCELLED_FOR: Final = 86_400.0
"""Seconds that the note about a cancelled waiter stays: longer than a process sleeps that is still to find it."""

_NOTE: Final = b"1:true"

_ANY: Final = LockSpec("", Rules())


@final
class Lines:
    """All lines of one space in which this process takes part.

    Attributes:
        is_watched: A hook wants to be told of ordinary work.
        is_listening: It hears wakes.
        held: How many holds have begun and not come to their end.
    """

    def __init__(self, scope: Scope, clock: Clock, hooks: Hooks, heartbeat: float | None) -> None:
        self.scope, self.clock, self.hooks = scope, clock, hooks
        self.is_watched: Final = bool(hooks)
        self.loop: Final = asyncio.get_running_loop()
        self.heartbeat: Final = Heartbeat(scope, clock, hooks, heartbeat, self._presence_lost)
        self._lines: Final[OrderedDict[tuple[str, ...], LocalLine]] = OrderedDict()
        self._by_head: Final[dict[RecordKey, LocalLine]] = {}
        self._by_grants: Final[dict[bytes, LocalLine]] = {}
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._listening: asyncio.Task[None] | None = None
        self.is_listening = False
        self._polling: asyncio.Task[None] | None = None
        self._starting: asyncio.TimerHandle | None = None
        self._given_back: Final = asyncio.Event()
        self.guard: Final = ForkGuard(repr(scope))
        self.is_closing = False
        can = scope.store.capabilities
        self._is_told: Final = can.wakes == "push"
        self._patience: Final = PATIENCE if can.reach == "network" and self._is_told else 0
        self._entered = self.held = 0
        secret = secrets.token_urlsafe(16)  # a process that names an entry of this process has read it
        self._entry_ids: Final = f"{scope.presence_name}:{secret}:"
        self._killed: Final[set[str]] = set()  # presences whose process was seen to die
        self._clearing: Final[dict[tuple[RecordKey, str], asyncio.Task[Any]]] = {}
        self._told: Final[set[tuple[tuple[str, ...], LockSpec]]] = set()
        self._cancelled: Final = scope.key("turned-out")  # notes about waiters that an operator has removed
        self._counted: Final = scope.key("held")  # the records of holders that lines only count

    def line(self, address: tuple[str, ...]) -> LocalLine:
        """Return this process's part of the line at an address."""
        found = self._lines.get(address)
        if found is not None:
            self._lines.move_to_end(address)  # the latest used comes last
            return found
        found = LocalLine(self.scope, LineKeys(self.scope, address), self.clock)
        self._by_head[found.driver.keys.head] = found
        self._by_grants[found.driver.keys.grants] = found
        for _ in range(min(FORGOTTEN, len(self._lines) - REMEMBERED)):  # forget some that are not in use, oldest first
            oldest, line = self._lines.popitem(last=False)
            if line.is_idle:
                keys = line.driver.keys
                del self._by_head[keys.head], self._by_grants[keys.grants]
            else:
                self._lines[oldest] = line  # in use: it is looked at again after all others
        self._lines[address] = found
        return found

    def own(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run ``work`` to its end, whatever is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def new_entry_id(self) -> str:
        """Return an id for one acquisition, unlike any other."""
        self._entered += 1
        return f"{self._entry_ids}{self._entered}"

    def is_first(self, address: tuple[str, ...], spec: LockSpec) -> bool:
        """Tell, once for each, that a call site disagrees with a line."""
        if (address, spec) in self._told:
            return False
        self._told.add((address, spec))
        return True

    async def listen(self) -> None:
        """Hear wakes from now on."""
        if self._listening is None:
            watch = self.scope.watch(self.scope.presence)
            if isinstance(watch, TakesAtOnce):
                watch.take_at_once = self._take_granted
            await watch.__aenter__()
            if self._listening is None:
                self._listening = self.own(self._listen(watch))
                self.is_listening = True

    async def _listen(self, watch: Watch) -> None:
        try:
            while (hint := await watch.wait()) is not None:
                told = {shown.key for shown in hint.moved if shown.key not in self._by_head}
                unsure = [line for shown in hint.moved if (line := self._take_shown(shown)) is not None]
                if hint.complete:  # a grant that is too large for a notice is read
                    about = [
                        self._by_head.get(key) or self._by_grants.get(_all_grants(key)) for key in hint.about - told
                    ]
                    lines = [line for line in about if line is not None]
                else:
                    lines = [line for line in self._lines.values() if self._may_have_missed(line)]
                for number, line in enumerate((*unsure, *lines)):
                    if number % MOST_IN_A_TURN == MOST_IN_A_TURN - 1:
                        await asyncio.sleep(0)  # it may be thousands, and a store in this process answers at once
                    if line.waits or line.holds or line.counted:
                        await self._safely(line.poll_front())
                    if line.counted and not hint.complete:
                        await self._safely(line.check_counted())
                self._tell_cancelled(hint.about)
        finally:
            await watch.__aexit__()

    def _take_granted(self, grant: Record) -> bool:
        """Take the grant of a mutex or of a slot where the notice arrives; return False if the listener is to do it."""
        line = self._by_grants.get(_all_grants(grant.key))
        try:
            return line is not None and is_of_mutex(grant) and line.take_grant(grant)
        except StandfastError:  # another version may have written it
            return False

    def _take_shown(self, record: Record) -> LocalLine | None:
        """Take a record that a notification shows, a head or a grant; return the line if it is to be read as well."""
        if (line := self._by_head.get(record.key)) is not None:
            line.take_head(record)
            return None
        line = self._by_grants.get(_all_grants(record.key))
        try:
            return None if line is None or line.take_grant(record) else line
        except StandfastError:  # another version may have written it
            return line

    def _may_have_missed(self, line: LocalLine) -> bool:
        """Return True if a line is to be read because a notification may have got lost.

        Stores say so every second while others write. A waiter that has not waited for longer than usual, and a hold
        that has just begun, are not worth a read: the first is polled for in any case, the second the next time. Where
        the store itself polls, that something may have changed is all that it ever says.
        """
        if not self._is_told:
            return True
        waited = asyncio.get_running_loop().time() - line.waiting_since if line.waits else 0.0
        if line.counted or (line.waits and waited >= _first_poll(line, self._patience)):
            return True
        now = self.clock.elapsed()
        return any(seconds_between(hold.known_at, now) >= NEW for hold in line.holds.values())

    def _tell_cancelled(self, about: Iterable[RecordKey]) -> None:
        """Tell waiters and holders that an operator removed: far back in a line, or counted, they would not see it."""
        for entry_id in [key.parts[-1] for key in about if key.startswith(self._cancelled)]:
            for wait in [line.waits[entry_id] for line in self._lines.values() if entry_id in line.waits]:
                wait.settle(None)
        evicted = [key.parts[-1] for key in about if key.startswith(self._counted)]
        for line in [each for each in self._lines.values() if evicted and each.counted]:
            line.lose_counted(evicted)

    async def _safely(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except StandfastError:  # the next poll finds out; a caller of the store itself is told
            return

    def _presence_lost(self, presence: Presence) -> None:
        for line in tuple(self._lines.values()):
            for hold in line.all_holds():
                if hold.presence is presence:
                    hold.lose(presence.lapse)
            for wait in tuple(line.waits.values()):
                if wait.presence is presence:
                    wait.settle(None)

    # --- polling and reaping -------------------------------------------------------------------------------------

    def poll_soon(self) -> None:
        """An entry has begun to wait: poll the line and reap those in front, unless the turn comes soon."""
        if self._polling is None and self._starting is None:
            self._starting = asyncio.get_running_loop().call_later(FIRST_POLL, self._start_polling)

    def _start_polling(self) -> None:
        self._starting = None
        if self._polling is None and not self.is_closing:
            polling = self.own(self._poll_lines())
            self._polling = None if polling.done() else polling  # an eager task may be over by now

    async def _poll_lines(self) -> None:
        loop, store = asyncio.get_running_loop(), self.scope.store
        due: dict[LocalLine, float] = {}
        try:
            while waiting := [line for line in self._lines.values() if line.waits]:
                # A line whose turns come is not polled: its first waiter here has not waited for long.
                firsts = {line: line.waiting_since + _first_poll(line, self._patience) for line in waiting}
                due = {line: max(due.get(line, 0.0), first) for line, first in firsts.items()}
                for line in waiting:
                    if due[line] <= loop.time() or (
                        line.is_near and any(map(store.is_dead, line.liveness_tokens.values()))
                    ):
                        await self._safely(self.reap(line))
                        pause = max(min(line.due_in, POLL_EVERY), len(waiting) / POLLS_PER_SECOND)
                        due[line] = loop.time() + pause
                probes = store.capabilities.sees_process_death and any(line.is_near for line in waiting)
                most = PROBE_EVERY if probes else FIRST_POLL
                await asyncio.sleep(max(0.001, min(min(due.values()) - loop.time(), most)))
        finally:
            self._polling = None

    async def reap(self, line: LocalLine) -> bool:
        """Read a line, and drop the entries whose presence is gone or whose time is over; return True if any."""
        line.due_in = POLL_EVERY
        sight = await line.look()
        seen = sight.line
        for name in seen.fallen:
            self._clear(line, name, CLEARED_WITHIN)
        entries = [*(each.entry for each in seen.holders), *(each.entry for each in seen.waiters)]
        names = presences_of(entries) | dict(seen.unseen_of).keys()
        alive = await self._presences(line, sorted(names))
        dead = {name for name in names if name not in alive}
        ends = [
            *alive.values(),
            *(each.ends_at for each in seen.holders if each.ends_at is not None),
            *(each.anchor.at for each in entries if isinstance(each.anchor, Until)),
        ]
        line.next_end = min((end for end in ends if end > sight.at), default=None)
        line.due_in = POLL_EVERY if line.next_end is None else (line.next_end - sight.at) / MICROSECONDS
        # The front could move up if the process that left did not get as far as granting it.
        is_halfway = seen.is_cut_off or advance(seen, sight.at) is not seen
        if not dead and all(end > sight.at for end in ends) and not is_halfway:
            return False
        if dead:
            keys, gone = line.driver.keys, tuple(sorted(dead))
            fell = EntriesFell(at=self.clock.wall(), key=keys.name, family=keys.address[1], presences=gone)
            self.hooks.emit(fell)
        line.driver.dead.update(dead)
        line.driver.killed.update(dead & self._killed)
        left = (await line.driver.ask(Reap(), _ANY)).sight.line
        for name in dead.intersection(left.fallen):
            self._clear(line, name)
        return True

    async def _presences(self, line: LocalLine, names: list[str]) -> dict[str, Instant]:
        """Return the presences that still count, and until when. One whose process has died is ended here."""
        alive: dict[str, Instant] = {}
        tokens: dict[str, str] = {}
        most = self.scope.at_most(MOST_READ)
        for start in range(0, len(names), most):
            keys = {name: line.driver.keys.presence(name) for name in names[start : start + most]}
            seen = await self.scope.read(*keys.values())
            for name, key in keys.items():
                record = seen.get(key)
                if record is None:
                    continue
                presence = PRESENCES.decode(record.value)
                if self.scope.store.is_dead(presence.liveness_token):
                    self._killed.add(name)
                    await remove(self.scope.store, key)
                else:
                    tokens[name] = presence.liveness_token
                    alive[name] = await end_of(self.scope.store, record, presence, seen.at)
        line.liveness_tokens = tokens
        return alive

    def _clear(self, line: LocalLine, presence: str, after: float = 0.0) -> None:
        """Delete the records of holders that were counted and have fallen, once, unless another process does."""
        about = line.driver.keys.head, presence
        if about not in self._clearing and not self.is_closing:
            self._clearing[about] = self.own(self._delete_held(line, presence, after))
            self._clearing[about].add_done_callback(lambda _: self._clearing.pop(about, None))

    async def _delete_held(self, line: LocalLine, presence: str, after: float) -> None:
        await asyncio.sleep(after)
        scope, start = self.scope, None
        with suppress(StandfastError):  # the next one that reaps the line finds it there
            start, end = line.driver.keys.held_by(presence)
            while start is not None:
                page = await scope.scan(start, end, limit=scope.at_most(MOST_READ))
                left = {
                    key: record.version
                    for key, record in page.records.items()
                    if presence_of(HELD.decode(record.value).entry) == presence
                }
                if left:
                    await scope.update(tuple(left), partial(_delete_unchanged, left))
                start = page.more
            await line.driver.ask(Reap(cleared=frozenset({presence})), _ANY)

    # --- eviction, by an operator --------------------------------------------------------------------------------
    #
    # A waiter that finds itself gone asks again, since it may have been taken for dead by mistake. So one that is
    # cancelled on purpose finds a note, which is there before it is gone, and is woken when it is.

    async def evict(self, address: tuple[str, ...], spec: LockSpec, entry_id: str) -> bool:
        """Remove an entry from a line for good, whether it holds or waits; return True if it was there."""
        left = await self._evict(address, spec, entry_id, only_waiting=False)
        return left.was_waiting or left.was_holding

    async def cancel(self, address: tuple[str, ...], spec: LockSpec, entry_id: str) -> bool:
        """Remove an entry that waits from a line for good; return True if it waited. One that holds by now stays."""
        return (await self._evict(address, spec, entry_id, only_waiting=True)).was_waiting

    async def _evict(self, address: tuple[str, ...], spec: LockSpec, entry_id: str, *, only_waiting: bool) -> Left:
        line = self.line(address)
        holder = (await line.look({entry_id})).line.holder(entry_id)
        waiter = None if holder is not None else await find_waiter(self.scope, line.driver.keys, entry_id)
        if waiter is not None:
            await self._note_cancelled(entry_id)
        slot, ticket = None if holder is None else holder.slot, None if waiter is None else waiter.ticket
        leave = Leave(entry_id, slot, ticket, by_force=True, only_waiting=only_waiting)
        # An operator names a key and need not know what kind of lock it is: the look has found that out.
        answer = (await line.driver.ask(leave, structs.replace(_ANY, history=spec.history))).answer
        if not isinstance(answer, Left):
            return Left(was_holding=False, was_waiting=False)
        if answer.was_waiting and waiter is not None:
            presences = [line.driver.keys.presence(name) for name in presences_of([waiter.entry])]
            await self._note_cancelled(entry_id, presences)
        return answer

    async def was_cancelled(self, entry_id: str) -> bool:
        """Return True if a waiter that is gone was cancelled on purpose, within the last day."""
        key = self._cancelled.child(entry_id)
        return (await self.scope.read(key)).get(key) is not None

    async def _note_cancelled(self, entry_id: str, wake: Iterable[RecordKey] = ()) -> None:
        key = self._cancelled.child(entry_id)
        wakes = tuple(Wake(presence, key) for presence in wake)

        def decide(seen: Snapshot) -> Decision[None]:
            put = Put(key, _NOTE, seen.version(key), expires_at=later(seen.at, CANCELLED_FOR))
            return Decision(None, (put,), wake=wakes)

        await self.scope.update([key], decide)

    # --- the end -------------------------------------------------------------------------------------------------

    def note_given_back(self) -> None:
        """Note that a hold has come to its end."""
        self.held -= 1
        if self.is_closing:
            self._given_back.set()

    async def aclose(self) -> None:
        """Stop: tell all holds and waiters, let them finish, and give up the presences.

        A body that does not end although it was cancelled still does what the lock protects. Its presence is left to
        lapse by itself.
        """
        if self.guard.crossed:
            return
        self.is_closing = True
        for line in tuple(self._lines.values()):
            for hold in line.all_holds():
                hold.lose("the space was closed")
            for wait in tuple(line.waits.values()):
                if not wait.turn.done():  # else it holds, and leaves like everyone who does
                    line.driver.ask(Leave(wait.entry.id, ticket=wait.ticket), wait.spec)
                wait.settle(None)
        await self._let_bodies_end()
        if self._starting is not None:
            self._starting.cancel()
        for task in (self._listening, self._polling, *self._clearing.values()):
            if task is not None:
                task.cancel()
        for line in tuple(self._lines.values()):
            await line.driver.finish()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.heartbeat.aclose()

    async def _let_bodies_end(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BODIES_END_WITHIN):
                while self.held:
                    self._given_back.clear()
                    await self._given_back.wait()


def _all_grants(grant: RecordKey) -> bytes:
    """Return what the keys of all grants of a line begin with, by one of them."""
    return grant[: grant.rfind(b"\x00\x01", 0, -2) + 2]


def _delete_unchanged(versions: dict[RecordKey, int], seen: Snapshot) -> Decision[None]:
    """Delete records that are still as they were read."""
    return Decision(None, tuple([Delete(key, was) for key, was in versions.items() if seen.version(key) == was]))


def _first_poll(line: LocalLine, patience: int) -> float:
    """Return for how many seconds one waits before its first poll.

    Far back, those at the front poll for all. Where turns come, but late, it is several times what others waited.
    """
    first = FIRST_POLL_AFAR if patience else FIRST_POLL
    return min(LATEST_POLL, max(first if line.is_near else POLL_EVERY, patience * line.waited))
