"""Entries of requests in lines of the store: superseding, acquiring a turn, reaping the dead, and messages to stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import MICROSECONDS, later
from standfast.codec import Codec
from standfast.errors import (
    ArbiterUnavailableError,
    HoldTimeoutError,
    RequestRejectedError,
    StandfastError,
    WouldWaitError,
)
from standfast.flows.arbiter.protocol import (
    KIND,
    MOST_HANDED_OVER,
    JoinsError,
    RequestEntry,
    Stop,
    Superseded,
    handed_over,
)
from standfast.locks.entry import (
    AcquireRequest,
    ExtraChanges,
    Granted,
    Line,
    LineEntries,
    LockSpec,
    NotGranted,
    OfRun,
    Rules,
    Waiting,
    acquire,
    release,
)
from standfast.locks.heartbeat import PRESENCES
from standfast.locks.inspect import ExplainedHolder, ExplainedWaiter, count_waiting
from standfast.scope import read_present
from standfast.stores.protocol import Decision, Put, Wake

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from standfast.clock import Instant
    from standfast.flows.arbiter.in_store import SharedArbiter, SharedTurn
    from standfast.flows.arbiter.protocol import Ask
    from standfast.keys import RecordKey
    from standfast.locks.entry import Answer, HeldEntry, Lines
    from standfast.locks.inspect import ExplainedEntry
    from standfast.space import Space
    from standfast.stores.protocol import Change, Snapshot, Watch


# --- making room: a newcomer asks those whose place it takes to stop, and revokes the grant of one that does not ---
#
# What stands in front of it came earlier, unless it has lost its place and joined again. Then it may find newer ones
# there, and gives way to them: the newest request wins, however long an older one was not heard of.

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at those in front. One that was missed, or has just got its turn, is asked then."""

SHORTEST: Final = 0.005
"""The least seconds between two looks."""


@final
class Supersession:
    """Works until the newcomer has its turn or is gone, or until it is cancelled.

    Attributes:
        superseded: Whom it has asked to stop.
        is_back: Whether the request has lost a place that it had: those in front of it may be newer.
    """

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._asked: Final[dict[str, float]] = {}
        self.superseded: tuple[Superseded, ...] = ()
        self.is_back = False

    async def run(self) -> None:
        """Ask, wait, and revoke. A store that does not answer is asked again."""
        grace, loop = self._ask.rules.grace, asyncio.get_running_loop()
        while True:
            try:
                if await self._look():
                    return
            except StandfastError:
                await asyncio.sleep(LOOK_EVERY)
            else:  # until the next grace is over
                left = [at + grace - loop.time() for at in self._asked.values()]
                await asyncio.sleep(min((each for each in left if each > SHORTEST), default=LOOK_EVERY))

    async def _look(self) -> bool:
        """Do what is to be done now; return True if the newcomer waits no longer."""
        arbiter, ask = self._arbiter, self._ask
        seen = await arbiter.explain(ask.address)
        own = next((each for each in reversed(seen.waiters) if each.owner == ask.id), None)
        if own is None:
            return True
        front: tuple[ExplainedEntry, ...] = (
            *seen.holders,
            *(each for each in seen.waiters if each.ticket < own.ticket),
        )
        alike = [each for each in front if each.note == ask.action and each.owner != ask.id]
        older = [
            each for each in alike if not self.is_back or each.entry in self._asked or _entered_at(each) < own.since
        ]
        newer = [each for each in alike if each not in older and each.is_alive and _entered_at(each) > own.since]
        if newer:
            await arbiter.stop_entry(ask.address, own, Stop(by=max(newer, key=_entered_at).owner))
            return True
        others = [each for each in older if ask.rules.supersedes == "all" or isinstance(each, ExplainedWaiter)]
        await self._ask_to_stop([each for each in others if each.entry not in self._asked])
        for each in others:
            is_over = self._asked[each.entry] + ask.rules.grace <= asyncio.get_running_loop().time()
            if is_over and isinstance(each, ExplainedHolder):
                await arbiter.lines.evict(ask.address, LINE_SPEC, each.entry)
        return False

    async def _ask_to_stop(self, others: Sequence[ExplainedEntry]) -> None:
        arbiter, ask = self._arbiter, self._ask
        if not others:
            return
        followed = await arbiter.stop_messages.followed(*(each.owner for each in others))
        for each in others:  # before any of them hears of it: then the newcomer's turn may come at once
            known = {one.id for one in self.superseded}
            before = (Superseded(one) for one in followed.get(each.owner, ()) if one not in known)
            own = Superseded(each.owner, arbiter.packed_of(each.entry))
            self.superseded = handed_over(*self.superseded, *before, own)
        await arbiter.stop_messages.note_followed(ask.id, tuple(each.id for each in self.superseded))
        for each in others:
            await arbiter.stop_entry(ask.address, each, Stop(by=ask.id))
            self._asked[each.entry] = asyncio.get_running_loop().time()


def _entered_at(each: ExplainedEntry) -> Instant:
    """Return when an entry joined the line, the last time if it did so again: so all processes agree which is newer.

    It is the store's time. Of two that joined in the same instant neither is newer, and the one behind waits.
    """
    return each.entered_at if isinstance(each, ExplainedHolder) else each.since


# --- taking a place in a line of the store: the request's record comes along, and refusals tell what that commit
# saw ---

LINE_SPEC: Final = LockSpec(KIND, Rules(1))
"""What kind of line it is."""

TRIES: Final = 5
"""How often a place is asked for in a line that seems to be full and is not."""

PAGE: Final = 500


class _LineFullError(Exception):
    """As many as may wait seem to wait already. Only raised and caught in here."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


@final
class TurnAcquisition:
    """One request on its way to its turn."""

    def __init__(self, arbiter: SharedArbiter, turn: SharedTurn) -> None:
        self._arbiter, self._turn = arbiter, turn
        self._ask: Final = turn.ask
        self._began_at: Final = arbiter.lines.clock.elapsed()
        self._refused_by: Line | None = None
        self._has_stood = False
        self._room: Supersession | None = None
        self._making_room: asyncio.Task[None] | None = None

    async def take(self) -> tuple[HeldEntry, AcquireRequest]:
        """Return the place at the front of the line, or raise why there is none."""
        rules = self._ask.rules
        try:
            if not rules.waits or rules.joins:
                return await self._take_at_once()
            return await self._take_in_turn()
        except HoldTimeoutError:
            raise await self._arbiter.late(self._ask) from None
        finally:
            if self._making_room is not None:
                self._making_room.cancel()

    def superseded(self) -> tuple[Superseded, ...]:
        """Return whom it has asked to stop."""
        return () if self._room is None else self._room.superseded

    async def _take_at_once(self) -> tuple[HeldEntry, AcquireRequest]:
        try:
            return await self._acquire(None, waits=False)
        except WouldWaitError:
            line = self._refused_by or Line(LINE_SPEC.rules)
            if not self._ask.rules.joins:
                raise _rejected(self._ask, line) from None
            self._check_none_to_join(line)
        return await self._take_in_turn()

    async def _take_in_turn(self) -> tuple[HeldEntry, AcquireRequest]:
        arbiter, ask = self._arbiter, self._ask
        room = ask.rules.most_waiting
        for _ in range(TRIES):
            try:
                return await self._acquire(room, waits=True)
            except _LineFullError as full:  # as far as its tickets tell: count those that wait
                most = ask.rules.most_waiting or 0
                await LineEntries(arbiter.lines).reap(ask.address)  # the dead count for nothing
                waiting = await count_waiting(arbiter.space, ask.address, most)
                if waiting >= most:
                    raise await arbiter.full(ask, waiting) from None
                room = full.place + most - waiting
        raise ArbiterUnavailableError(f"the line of {ask.label} moves on too quickly")

    async def _acquire(self, room: int | None, *, waits: bool) -> tuple[HeldEntry, AcquireRequest]:
        """Take a place, under an id of its own: what becomes of an earlier try has no say in this one."""
        arbiter, ask, turn = self._arbiter, self._ask, self._turn
        arbiter.remove(turn)
        turn.entry_id = arbiter.lines.new_entry_id()
        arbiter.add(turn)
        request = AcquireRequest(
            ask.label,
            ask.address,
            LINE_SPEC,
            arbiter.space.lease,
            turn.called_from,
            owner=ask.id,
            waits=waits,
            timeout=self._left() if waits else None,
            note=ask.action,
            extra_changes=self._extra_changes(room),
            may_circle=False,
            on_waiting=self._waits,
            keeps_age=True,
            entry_id=turn.entry_id,
        )
        place = await acquire(arbiter.lines, request)
        if waits and ask.rules.budget is not None and self._left() == 0:
            await release(arbiter.lines, place, request)
            raise await arbiter.late(ask)
        return place, request

    def _left(self) -> float | None:
        """Return for how many seconds it may still wait."""
        if self._ask.rules.budget is None:
            return None
        gone = (self._arbiter.lines.clock.elapsed() - self._began_at) / MICROSECONDS
        return max(0.0, self._ask.rules.budget - gone)

    def _waits(self, place: int, is_back: bool) -> None:  # noqa: FBT001 -- as an AcquireRequest calls it
        ask, self._has_stood = self._ask, True
        if ask.on_waiting is not None:
            ask.on_waiting(place + 1)
        if ask.rules.supersedes == "none":
            return
        self._room = self._room or Supersession(self._arbiter, ask)
        self._room.is_back = self._room.is_back or is_back
        if self._making_room is None or self._making_room.done():  # it ends when it does not find its own request
            self._making_room = self._arbiter.own(self._room.run())

    # --- what is committed, or refused ---------------------------------------------------------------------------

    def _extra_changes(self, room: int | None) -> ExtraChanges[Answer]:
        extra_changes = self._ask.extra_changes

        def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
            if not isinstance(answer, Granted | Waiting):
                self._refused_by = answer.line if isinstance(answer, NotGranted) else None
                return ()
            position = 0
            if isinstance(answer, Waiting):
                if self._room is not None:  # it asks again, and may be back: noted before others see it there
                    self._room.is_back = True
                if room is not None and answer.place >= room and not self._has_stood:  # one that was let in may stay
                    raise _LineFullError(answer.place)
                if self._ask.rules.joins:  # one to join may have come meanwhile
                    line = LineEntries(self._arbiter.lines).line_in(self._ask.address, seen)
                    if line is not None:
                        self._check_none_to_join(line)
                position = answer.place + 1
            return () if extra_changes is None else extra_changes.decide(position, seen)

        return ExtraChanges(() if extra_changes is None else extra_changes.keys, decide)

    def _check_none_to_join(self, line: Line) -> None:
        for holder in line.holders:
            if holder.entry.note == self._ask.action and holder.entry.owner != self._ask.id:
                entry = holder.entry
                is_run = isinstance(entry.anchor, OfRun)
                raise JoinsError(RequestEntry(entry.owner, entry.note, holder.granted_at, is_run))
        for waiter in line.waiters:
            if waiter.entry.note == self._ask.action and waiter.entry.owner != self._ask.id:
                entry = waiter.entry
                is_run = isinstance(entry.anchor, OfRun)
                raise JoinsError(RequestEntry(entry.owner, entry.note, entry.entered_at, is_run))


def _rejected(ask: Ask, line: Line) -> RequestRejectedError:
    """Say who is in the way: the holder, or the one whose turn is next if there is none at the moment."""
    for holder in line.holders:
        is_run = isinstance(holder.entry.anchor, OfRun)
        return RequestRejectedError(ask.label, holder.entry.owner, holder.granted_at, holder_is_durable=is_run)
    for waiter in line.waiters:
        entry, is_run = waiter.entry, isinstance(waiter.entry.anchor, OfRun)
        return RequestRejectedError(ask.label, entry.owner, entry.entered_at, "waiting", is_run)
    return RequestRejectedError(ask.label, "", 0, "waiting", holder_is_durable=False)


# --- reaping lines in which only durable requests wait: none waits there in any process, so no process looks -------
#
# A request that is attended holds its place by its process. If that dies, a waiter in another process lets it
# fall. A run that waits is in no process at all. When it begins to wait, the server that has put it there looks at
# those in front, see LineEntries.look_after. From then on every server watches the processes, which are few, and goes
# round the lines, which may be many, when one of them is gone.

EVERY: Final = 1.0
"""Seconds between two looks at which processes there are."""

PROBE_EVERY: Final = 0.1
"""Seconds between two looks at their tokens, where the store can see a process die."""

PAUSE: Final = 0.002
"""Seconds between two lines, so that many of them do not keep the store busy."""

MOST_READ: Final = 100
"""The most words or presences that are read at once."""


async def reap_lines_forever(space: Space, lines: Lines) -> None:
    """Go round at first, whenever a process is gone, and now and then. A store that fails is asked again."""
    processes, loop = WatchedProcesses(space), asyncio.get_running_loop()
    due = loop.time()
    while True:
        with suppress(StandfastError):
            if await processes.have_lost_one():
                due = loop.time()
            if due <= loop.time():
                await reap_lines(space, lines)
                due = loop.time() + max(EVERY, space.lease)
        await processes.watch(EVERY)


@final
class WatchedProcesses:
    """The processes of a space, as one of them sees them come and go."""

    def __init__(self, space: Space) -> None:
        self._space: Final = space
        self._liveness_tokens: dict[str, str] = {}

    async def have_lost_one(self) -> bool:
        """Look which there are; True: one that was there is not, or has died."""
        found: dict[str, str] = {}
        start, end = self._space.key("presence").within()
        while True:
            page = await self._space.scan(start, end, limit=self._space.at_most(MOST_READ))
            for key, record in page.records.items():
                found[".".join(key.parts[3:])] = PRESENCES.decode(record.value).liveness_token
            if page.more is None:
                break
            start = page.more
        known, self._liveness_tokens = self._liveness_tokens, found
        return not known.keys() <= found.keys() or self._has_died()

    async def watch(self, length: float) -> None:
        """Wait for some seconds, or until one of them is seen to die."""
        loop = asyncio.get_running_loop()
        until = loop.time() + length
        probes = self._space.store.capabilities.sees_process_death and any(self._liveness_tokens.values())
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, PROBE_EVERY) if probes else left)
            if probes and self._has_died():
                return

    def _has_died(self) -> bool:
        return any(map(self._space.store.is_dead, self._liveness_tokens.values()))


async def reap_lines(space: Space, lines: Lines) -> None:
    """Remove the entries of dead processes from each line in which a request waits."""
    start, end = space.key("ticket", KIND).within()
    while True:
        page = await space.scan(start, end, limit=1)
        if not page.records:
            return
        ticket = next(iter(page.records))
        address = ticket.parts[3:-1]
        await LineEntries(lines).reap(address)
        start = space.key("ticket", *address).within()[1]
        await asyncio.sleep(PAUSE)


# --- words for requests that wait or run elsewhere: a record that says why to stop, and a hint to look -------------
#
# A word is for one entry in a line, never for a session or a key, so that it cannot reach the one that comes next.

KEPT_FOR: Final = 3_600.0
"""Seconds that a word stays: longer than a process sleeps that is still to find it."""

STOPS: Final[Codec[Stop]] = Codec(Stop, what="a word to stop")


class SupersededRecord(Struct, frozen=True):
    """The requests that one has superseded, the oldest first."""

    ids: tuple[str, ...] = ()


FOLLOWED: Final[Codec[SupersededRecord]] = Codec(SupersededRecord, what="the requests that were superseded")


@final
class StopMessages:
    """The words of one space."""

    def __init__(self, space: Space) -> None:
        self._space: Final = space
        self._root: Final = space.key("stop")

    def watch(self) -> Watch:
        """Return what hears of words for this process."""
        return self._space.watch(self._of_process(self._space.presence_name))

    def entries(self, about: Iterable[RecordKey]) -> list[str]:
        """Return for which entries there are words, by the keys that a hint is about."""
        return [key.parts[-1] for key in about if key.startswith(self._root)]

    async def leave(self, entry_id: str, why: Stop) -> None:
        """Leave a word for an entry, and wake its process. The first word counts."""
        key, (process, separator, _) = self._key(entry_id), entry_id.partition(":")

        def decide(seen: Snapshot) -> Decision[None]:
            wake = (Wake(self._of_process(process), key),) if separator else ()
            if seen.get(key) is not None:
                return Decision(None, wake=wake)
            put = Put(key, STOPS.encode(why), expires_at=later(seen.at, KEPT_FOR))
            return Decision(None, (put,), wake=wake)

        await self._space.update([key], decide)

    async def read(self, entries: Collection[str]) -> dict[str, Stop]:
        """Return the words that there are for these entries of this process."""
        name = self._space.presence_name
        within = self._root.child(f"{name}:"), self._root.child(f"{name};")  # a semicolon sorts next to a colon
        found = await read_present(self._space, entries, within, self._key, lambda key: key.parts[-1])
        return {entry: STOPS.decode(record.value) for entry, record in found.items()}

    async def note_followed(self, request_id: str, ids: tuple[str, ...]) -> None:
        """Note what a request supersedes, for its process, and for one that supersedes it in turn."""
        key = self._space.key("superseded", request_id)

        def decide(seen: Snapshot) -> Decision[None]:
            before = seen.get(key)
            known = () if before is None else FOLLOWED.decode(before.value).ids
            value = FOLLOWED.encode(SupersededRecord(tuple(dict.fromkeys((*known, *ids)))[-MOST_HANDED_OVER:]))
            put = Put(key, value, seen.version(key), expires_at=later(seen.at, KEPT_FOR))
            return Decision(None, (put,))

        await self._space.update([key], decide)

    async def followed(self, *requests: str) -> dict[str, tuple[str, ...]]:
        """Return whom each of these requests has superseded, if it has."""
        found, most = dict[str, tuple[str, ...]](), self._space.at_most(MOST_READ)
        for start in range(0, len(requests), most):
            keys = {self._space.key("superseded", each): each for each in requests[start : start + most]}
            seen = await self._space.read(*keys)
            found |= {keys[key]: FOLLOWED.decode(record.value).ids for key, record in seen.records.items()}
        return found

    def _key(self, entry_id: str) -> RecordKey:
        return self._root.child(entry_id)

    def _of_process(self, name: str) -> RecordKey:
        return self._space.key("stops", name)
