"""A run's place in the line of a lock: taking it, keeping it while the run sleeps, and leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, final

import msgspec
from msgspec import Raw

from standfast.clock import Instant, later
from standfast.errors import LeaseLostError, LockKindError, ReentryError, StandfastError, TooHeavyError
from standfast.locks.algebra.entries import Entry, Holder, OfRun
from standfast.locks.algebra.line import Granted, TooHeavy, Waiting
from standfast.locks.driving.requests import Along, Left, WaitsForItself, WrongKind
from standfast.locks.driving.run_entries import RunEntries, RunTurn
from standfast.locks.driving.waits_for import shown
from standfast.workflows.context.lock_marks import Asked
from standfast.workflows.context.riding import ride
from standfast.workflows.running.losing import is_within
from standfast.workflows.running.replay import branch_of
from standfast.workflows.storing.failures import describe
from standfast.workflows.storing.records import HEADERS, Mark, RunKeys
from standfast.workflows.working.looking_after import look_at_line

if TYPE_CHECKING:
    from standfast.locks.driving.driver import Answered
    from standfast.locks.driving.requests import Answer
    from standfast.stores.protocol import Change, Snapshot, Wake
    from standfast.workflows.context.lock_marks import LockWish, RunHold
    from standfast.workflows.context.riding import Ride
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch
    from standfast.workflows.running.journal import Held

Place: TypeAlias = RunTurn | Waiting | None
"""Holding, waiting, or not there."""

FAR_BACK: Final = 60.0
"""Seconds between two looks at a line by one who stands so far back that it does not see the front."""

EACH_PLACE: Final = 10.0
"""Seconds by which the look comes later for each one in front: those are nearer, and look earlier."""


@final
class Standing:
    """One acquisition of a lock by one branch of a run.

    Attributes:
        wish: What is asked for.
        branch: By which branch.
        operation: The id of the operation.
        asked_at: Since when it stands in line, by the store's time.
    """

    def __init__(self, activation: Activation, branch: Branch, operation: str, wish: LockWish) -> None:
        self.wish, self.branch, self.operation = wish, branch, operation
        self.asked_at = Instant(0)
        self._activation = activation
        self._entries: Final = RunEntries(activation.host.lines)
        run = activation.keys.id
        # Branches that run side by side may wait for each other, so each is an owner of its own.
        self._owner: Final = f"{run}/{branch.path}" if branch.path else run
        self.entry: Final = Entry(
            f"{run}:{operation}",
            self._owner,
            OfRun(run),
            Instant(0),
            mode=wish.mode,
            weight=wish.weight,
            max_hold=wish.max_hold,
            note=wish.note,
        )

    # --- getting in ----------------------------------------------------------------------------------------------

    async def enter(self) -> StandfastError | tuple[Place, Instant]:
        """Stand in line, and record it; return the place and since when, or why that is not possible."""
        if (own := self._in_its_own_way()) is not None:
            return ReentryError(self.wish.name, own, self.operation)
        answered = await self._enter(is_new=True)
        refused = self._refusal(answered.answer)
        return refused if refused is not None else (await self._place(answered), answered.sight.at)

    async def enter_again(self) -> StandfastError | Place:
        """Stand in line once more, at its end: the place was lost before it was known to be held."""
        answered = await self._enter(is_new=False)
        return self._refusal(answered.answer) or await self._place(answered)

    async def _enter(self, *, is_new: bool) -> Answered:
        async def send(sent: Ride) -> Answered:
            def decide(answer: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
                sent.check(seen)
                sent.added = None
                if not is_new:
                    return sent.changes(), ()
                return (sent.changes(self._asks(seen.at)) if isinstance(answer, Granted | Waiting) else ()), ()

            return await self._entries.enter(
                self.wish.address,
                self.wish.site,
                self.entry,
                is_new=is_new,
                marker=self._may_circle(),
                along=Along(sent.keys, decide),
            )

        answered = await ride(self._activation, self.branch, self.operation, send, line=self.wish.address)
        self._activation.host.saw(answered.sight.at)
        return answered

    def _asks(self, at: Instant) -> Mark:
        wish, rules = self.wish, self.wish.site.rules
        asked = Asked(wish.address, wish.site.kind, wish.name, self._owner, rules.permits, rules.alone)
        until = None if wish.timeout is None else later(at, wish.timeout)
        return Mark("lock", self.operation, at, Raw(msgspec.json.encode(asked)), until=until)

    async def _place(self, answered: Answered) -> Place:
        return self._entries.turn(self.wish.address, self.entry.id, answered) or await self.look()

    def _held_above(self) -> list[Held]:
        """Return what this branch holds, and those that wait for its end."""
        journal, path = self._activation.journal, self.branch.path
        return [] if journal is None else [held for held in journal.holds.values() if is_within(path, held.path)]

    def _may_circle(self) -> bool:
        return bool(self._held_above()) or bool(self._activation.header.lines)

    def _in_its_own_way(self) -> str | None:
        """Return a hold of this branch, or of one that waits for it, that would keep it waiting for ever."""
        own = [held.entry for held in self._held_above() if held.line == self.wish.address]
        holders = [Holder(entry, 0, Instant(0)) for entry in own]
        return own[0].id if holders and not self.wish.site.rules.admit(holders, self.entry) else None

    def _refusal(self, answer: Answer) -> StandfastError | None:
        wish = self.wish
        if isinstance(answer, TooHeavy):
            return TooHeavyError(wish.name, wish.weight, answer.permits)
        if isinstance(answer, WrongKind):
            return LockKindError(wish.name, answer.kind, wish.site.kind)
        if isinstance(answer, WaitsForItself):
            return ReentryError(wish.name, self._owner, self.operation)
        return None

    # --- waiting -------------------------------------------------------------------------------------------------

    async def look(self) -> Place:
        """Return the place."""
        return await self._entries.look(self.wish.address, self.entry.id, owner=self._owner)

    async def look_after(self) -> tuple[Place, Instant | None]:
        """Let those fall in front who are over; return the place, and when to look again."""
        next_end = await look_at_line(self._activation.host, self.wish.address)
        place = await self.look()
        if not isinstance(place, Waiting):
            return place, None
        if next_end is not None:
            return place, later(next_end, place.place * EACH_PLACE)
        last = self._activation.host.lines.line(self.wish.address).last
        is_far = last is not None and last.line.horizon is not None
        return place, later(self._activation.host.now(), FAR_BACK + place.place * EACH_PLACE) if is_far else None

    async def was_withdrawn(self) -> bool:
        """Tell whether an operator took it out of the line."""
        return await self._entries.was_withdrawn(self.entry.id)

    async def circle(self) -> tuple[str, ...]:
        """Return the circle in which it has to give way; nothing if it may wait."""
        if not self._may_circle():
            return ()
        return shown(await self._entries.circle_to_break(self._owner, self.entry.id))

    async def held_by_parent(self) -> str | None:
        """Return a run that holds what this one waits for, and waits for this one's end: that would never end."""
        holders = [holder for holder in self._last_holders() if isinstance(holder.entry.anchor, OfRun)]
        header = self._activation.header
        while holders and header.parent:
            path = branch_of(header.parent_step)
            for holder in holders:
                is_above = _is_held_around(holder.entry, header.parent, path)
                if is_above and not self.wish.site.rules.admit([holder], self.entry):
                    return header.parent
            key = RunKeys(self._activation.host.space, header.parent).header
            record = (await self._activation.host.space.read(key)).get(key)
            if record is None:
                return None
            header = HEADERS.decode(record.value)
        return None

    def holders(self) -> tuple[str, ...]:
        """Return who held when the line was last seen."""
        return tuple(holder.entry.owner for holder in self._last_holders())

    def _last_holders(self) -> tuple[Holder, ...]:
        last = self._activation.host.lines.line(self.wish.address).last
        return () if last is None else last.line.holders

    # --- getting out ---------------------------------------------------------------------------------------------

    async def leave(self, problem: StandfastError | None = None, hold: RunHold | None = None) -> Mark:
        """Leave the line and record it, with what is to be raised, if anything; return that mark.

        Args:
            problem: Why it leaves.
            hold: What it is taken to hold: if it does not, that is to be raised.
        """
        marks: list[Mark] = []

        async def send(sent: Ride) -> Answered:
            def decide(answer: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
                sent.check(seen)
                raised = problem
                if hold is not None and isinstance(answer, Left) and not answer.was_holding:
                    reason = "it was released by force, or its max_hold is over"
                    raised = LeaseLostError(self.wish.name, hold.fence, reason)
                failure = None if raised is None else describe(raised, self._activation.host.known)
                marks[:] = [Mark("released", self.operation, seen.at, failure=failure)]
                return sent.changes(*marks), ()

            return await self._entries.leave(
                self.wish.address,
                self.wish.site,
                self.entry.id,
                slot=None if hold is None else hold.slot,
                owner=self._owner,
                along=Along(sent.keys, decide),
            )

        line = self.wish.address
        answered = await ride(self._activation, self.branch, self.operation, send, line=line, leaving=True)
        self._activation.host.saw(answered.sight.at)
        return marks[0]


def _is_held_around(entry: Entry, run: str, path: str) -> bool:
    """Tell whether an entry is of a run's branch, or of one above it."""
    held_in = entry.owner.removeprefix(run)
    return entry.anchor == OfRun(run) and is_within(path, held_in.removeprefix("/"))
