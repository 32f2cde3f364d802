"""Locks that a run holds, however long it sleeps: a place in the same lines that processes stand in.

The place is anchored to the run, not to the process that drives it. It is taken and left in one commit with the mark
that says so, so whoever has to clean up after a run finds in its history every line that it may stand in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import Raw

from holdfast.clock import Instant, later
from holdfast.durations import optional_seconds
from holdfast.errors import (
    HoldfastError,
    HoldMisuseError,
    HoldTimeoutError,
    LeaseLostError,
    LockKindError,
    ReentryError,
    TooHeavyError,
    WaitCycleError,
    WithdrawnError,
)
from holdfast.locks.algebra.entries import Entry, Holder, OfRun
from holdfast.locks.algebra.line import Granted, TooHeavy, Waiting
from holdfast.locks.algebra.record import check_permits
from holdfast.locks.driving.records import LineKeys
from holdfast.locks.driving.requests import Along, Left, WaitsForItself, WrongKind
from holdfast.locks.driving.run_entries import RunEntries, RunTurn
from holdfast.locks.driving.waits_for import shown
from holdfast.locks.locking import site_of
from holdfast.locks.options import LONGEST_NOTE, check_text
from holdfast.scope import address_of
from holdfast.workflows.branches import OVER, Wait
from holdfast.workflows.control import RunCancelled, Unload
from holdfast.workflows.failures import describe, restore
from holdfast.workflows.journal import Held
from holdfast.workflows.lock_marks import ASKED, GRANTING, Asked, Granting, LockWish, RunHold
from holdfast.workflows.losing import is_within, raise_lost
from holdfast.workflows.records import Mark
from holdfast.workflows.riding import go_on, ride

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.durations import Duration
    from holdfast.locks.driving.driver import Answered
    from holdfast.locks.driving.requests import Answer
    from holdfast.locks.locking import DurableLock
    from holdfast.stores.protocol import Change, Snapshot, Wake
    from holdfast.workflows.activation import Activation
    from holdfast.workflows.branches import Branch
    from holdfast.workflows.riding import Ride

LOCK: Final = ("lock", "held", "released", "went_on", "cancelled")

FAR_BACK: Final = 60.0
"""Seconds between two looks at a line by one who stands so far back that it does not see the front."""

EACH_PLACE: Final = 10.0
"""Seconds by which the look comes later for each one in front: those are nearer, and look earlier."""


@final
class ContextLock:
    """A lock that is about to be held: enter it with ``async with``. Get it from ``ctx.mutex`` and its like."""

    __slots__ = ("_activation", "_asked", "_branch", "_entries", "_find_branch", "_hold", "_operation", "_wish")

    def __init__(self, activation: Activation, find_branch: Callable[[str], Branch], wish: LockWish) -> None:
        self._activation, self._find_branch, self._wish = activation, find_branch, wish
        self._entries: Final = RunEntries(activation.host.lines)
        self._branch: Branch | None = None
        self._hold: RunHold | None = None
        self._operation = ""
        self._asked: Asked | None = None

    def __repr__(self) -> str:
        return f"<ContextLock {self._wish.operation} {self._wish.name}>"

    # --- taking it -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> RunHold:
        if self._branch is not None:
            raise HoldMisuseError(self._wish.name, "it was entered already; call ctx.mutex(...) anew for each block")
        branch = self._branch = self._find_branch(f"ctx.{self._wish.operation}")
        self._operation = branch.next_id(self._wish.operation)
        mark = await self._turn(branch)
        until = None if mark is None else mark.until
        if mark is not None and mark.kind == "released":
            raise self._failed(mark)
        if mark is not None:
            self._compare(mark)
        answered = await self._enter(branch) if mark is None else None
        if answered is not None and self._wish.timeout is not None:
            until = later(answered.sight.at, self._wish.timeout)
        try:
            return await self._wait_for_turn(branch, until, answered)
        except (RunCancelled, LeaseLostError):
            if await self._turn(branch) is None:
                await self._leave(branch, None)
            else:
                await self._pass_by(branch)
            raise

    async def _turn(self, branch: Branch) -> Mark | None:
        return await self._activation.turn(branch, LOCK, self._operation)

    def _compare(self, mark: Mark) -> None:
        asked = ASKED.decode(mark.value or b"{}")
        if asked.address != self._wish.address:
            self._activation.differ(f"the lock {asked.name!r}", f"the lock {self._wish.name!r}")
            raise Unload

    def _failed(self, mark: Mark) -> Exception:
        if mark.failure is None:
            return LeaseLostError(self._wish.name, 0, "no reason was recorded")
        return restore(mark.failure, self._activation.host.known)

    async def _enter(self, branch: Branch) -> Answered:
        """Stand in line, and record it; or record why that is not possible, and raise."""
        self._refuse_own(branch)
        wish, activation, operation = self._wish, self._activation, self._operation
        entry = self._entry(branch)

        async def send(sent: Ride) -> Answered:
            def decide(answer: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
                sent.check(seen)
                sent.added = None
                if not isinstance(answer, Granted | Waiting):
                    return (), ()
                until = None if wish.timeout is None else later(seen.at, wish.timeout)
                value = Raw(msgspec.json.encode(self._asking(branch)))
                return sent.changes(Mark("lock", operation, seen.at, value, until=until)), ()

            return await self._entries.enter(
                wish.address,
                wish.site,
                entry,
                is_new=True,
                marker=self._may_circle(branch),
                along=Along(sent.keys, decide),
            )

        answered = await ride(activation, branch, operation, send, line=wish.address)
        activation.host.saw(answered.sight.at)
        refused = self._refusal(answered.answer)
        if refused is not None:
            raise self._note_failure(refused)
        return answered

    def _asking(self, branch: Branch) -> Asked:
        wish = self._wish
        rules = wish.site.rules
        return Asked(wish.address, wish.site.kind, wish.name, self._owner(branch), rules.permits, rules.alone)

    def _entry(self, branch: Branch) -> Entry:
        run, wish = self._activation.keys.id, self._wish
        return Entry(
            f"{run}:{self._operation}",
            self._owner(branch),
            OfRun(run),
            Instant(0),
            mode=wish.mode,
            weight=wish.weight,
            max_hold=wish.max_hold,
            note=wish.note,
        )

    def _owner(self, branch: Branch) -> str:
        """Return who waits, in the eyes of deadlock detection. Branches side by side may wait for each other."""
        run = self._activation.keys.id
        return f"{run}/{branch.path}" if branch.path else run

    def _held_above(self, branch: Branch) -> list[Held]:
        """Return what this branch holds, or those that wait for its end."""
        journal = self._activation.journal
        return [] if journal is None else [held for held in journal.holds.values() if is_within(branch.path, held.path)]

    def _may_circle(self, branch: Branch) -> bool:
        return bool(self._held_above(branch)) or bool(self._activation.header.lines)

    def _refuse_own(self, branch: Branch) -> None:
        """Refuse to wait for a hold of a branch that waits for this one: that would never end."""
        wish = self._wish
        own = [held.entry for held in self._held_above(branch) if held.line == wish.address]
        holders = [Holder(entry, 0, Instant(0)) for entry in own]
        if holders and not wish.site.rules.admit(holders, self._entry(branch)):
            raise self._note_failure(ReentryError(wish.name, own[0].id, self._operation))

    def _refusal(self, answer: Answer) -> HoldfastError | None:
        wish = self._wish
        if isinstance(answer, TooHeavy):
            return TooHeavyError(wish.name, wish.weight, answer.permits)
        if isinstance(answer, WrongKind):
            return LockKindError(wish.name, answer.kind, wish.site.kind)
        if isinstance(answer, WaitsForItself):
            return ReentryError(wish.name, self._activation.keys.id, self._operation)
        return None

    def _note_failure(self, problem: HoldfastError) -> Exception:
        activation = self._activation
        mark = Mark(
            "released", self._operation, activation.host.now(), failure=describe(problem, activation.host.known)
        )
        activation.note(mark)
        return self._failed(mark)

    # --- waiting for it ------------------------------------------------------------------------------------------

    async def _wait_for_turn(self, branch: Branch, until: Instant | None, answered: Answered | None) -> RunHold:
        activation, wish = self._activation, self._wish
        if answered is None and (mark := await self._turn(branch)) is not None:
            if mark.kind == "held":
                return self._take(branch, GRANTING.decode(mark.value or b""))
            await self._pass_by(branch)
            raise self._failed(mark)
        turn: object = None
        if answered is not None:
            turn = self._entries.turn(wish.address, self._entry(branch).id, answered)
        if turn is None:
            turn = await self._look(branch)
        if not isinstance(turn, RunTurn):
            await self._break_circle(branch)
        while not isinstance(turn, RunTurn):
            turn = await self._wait_a_while(branch, until, turn)
        if branch.lost is not None:
            raise_lost(activation, branch, self._operation)
        held = Granting(turn.fence, turn.slot, turn.granted_at, turn.ends_at)
        activation.note(Mark("held", self._operation, activation.host.now(), Raw(msgspec.json.encode(held))))
        return self._take(branch, held)

    async def _look(self, branch: Branch) -> RunTurn | Waiting | None:
        return await self._entries.look(self._wish.address, self._entry(branch).id, owner=self._owner(branch))

    async def _wait_a_while(self, branch: Branch, until: Instant | None, seen: object) -> object:
        """Wait until something has changed; return how the place is then."""
        activation, wish = self._activation, self._wish
        if seen is None:
            return await self._stand_again(branch)
        next_end = await self._entries.look_after(wish.address)
        seen = await self._look(branch)
        if isinstance(seen, RunTurn) or seen is None:
            return seen
        if until is not None and until <= activation.host.now():
            await self._give_up(branch)
        look_at = self._look_at(seen, next_end)
        wakes_at = min((each for each in (until, look_at) if each is not None), default=None)
        wait = Wait(
            f"the {wish.site.kind} {wish.name!r}",
            wakes_at,
            self._look_for_news(branch),
            line=wish.address if wakes_at is not None and wakes_at != until else (),
        )
        result = await activation.wait(branch, wait)
        if branch.cancel is not None:
            activation.raise_cancel(branch, self._operation)
        if activation.is_unloading:
            raise Unload
        return await self._look(branch) if result is OVER else result if isinstance(result, RunTurn) else None

    def _look_for_news(self, branch: Branch) -> Callable[[Wait], Any]:
        async def look(wait: Wait) -> None:
            found = await self._look(branch)
            if not isinstance(found, Waiting):
                wait.settle(found)

        return look

    def _look_at(self, seen: Waiting, next_end: Instant | None) -> Instant | None:
        """Return when to look after the line: those nearer to the front do so earlier."""
        line = self._activation.host.lines.line(self._wish.address)
        if next_end is not None:
            return later(next_end, seen.place * EACH_PLACE)
        is_far = line.last is not None and line.last.line.horizon is not None
        return later(self._activation.host.now(), FAR_BACK + seen.place * EACH_PLACE) if is_far else None

    async def _stand_again(self, branch: Branch) -> object:
        """Enter once more: the place was lost before it was known to be held. Not if an operator took it away."""
        wish, entry = self._wish, self._entry(branch)
        if await self._entries.was_withdrawn(entry.id):
            await self._leave(branch, WithdrawnError(wish.name))

        async def send(sent: Ride) -> Answered:
            def decide(_answer: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
                sent.check(seen)
                return sent.changes(), ()

            along = Along(sent.keys, decide)
            return await self._entries.enter(
                wish.address, wish.site, entry, marker=self._may_circle(branch), along=along
            )

        answered = await ride(self._activation, branch, self._operation, send, line=wish.address)
        if (refused := self._refusal(answered.answer)) is not None:
            await self._leave(branch, refused)
        return self._entries.turn(wish.address, entry.id, answered) or await self._look(branch)

    async def _break_circle(self, branch: Branch) -> None:
        if self._may_circle(branch):
            circle = await self._entries.circle_to_break(self._owner(branch), self._entry(branch).id)
            if circle:
                await self._leave(branch, WaitCycleError(self._wish.name, self._operation, shown(circle)))

    async def _give_up(self, branch: Branch) -> None:
        line = self._activation.host.lines.line(self._wish.address).last
        holders = () if line is None else tuple(holder.entry.owner for holder in line.line.holders)
        await self._leave(branch, HoldTimeoutError(self._wish.name, self._wish.timeout or 0.0, holders))

    def _take(self, branch: Branch, held: Granting) -> RunHold:
        activation, wish = self._activation, self._wish
        grant = LineKeys(activation.host.space, wish.address).grant(held.slot)
        if activation.journal is not None:
            activation.journal.holds[grant] = Held(
                held.fence, wish.name, branch.path, wish.address, held.ends_at, self._entry(branch)
            )
        self._hold = RunHold(wish.name, held, grant)
        return self._hold

    # --- giving it back ------------------------------------------------------------------------------------------

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        branch, hold = self._branch, self._hold
        if isinstance(problem, Unload) or branch is None or hold is None:
            return
        mark = await self._released_before(branch)
        if mark is None:
            await self._leave(branch, None, hold=hold, told=problem is not None)
            return
        self._forget(hold)
        await self._pass_by(branch)
        if mark.failure is not None:
            raise self._failed(mark)

    async def _released_before(self, branch: Branch) -> Mark | None:
        """Return the mark of an earlier release. What is pending for this branch is told later, not here."""
        lost, branch.lost = branch.lost, None
        cancel, branch.cancel = branch.cancel, None
        try:
            return await self._turn(branch)
        finally:
            branch.cancel = branch.cancel or cancel
            if lost is not None and self._hold is not None and lost.fence != self._hold.fence:
                branch.lost = lost

    async def _pass_by(self, branch: Branch) -> None:
        if await self._turn(branch) is None:
            go_on(self._activation, self._operation)

    async def _leave(
        self, branch: Branch, problem: HoldfastError | None, *, hold: RunHold | None = None, told: bool = True
    ) -> None:
        """Leave the line and record it, with what is to be raised, if anything; then raise that."""
        activation, wish, operation = self._activation, self._wish, self._operation
        marks: list[Mark] = []
        fence = 0 if hold is None else hold.fence

        async def send(sent: Ride) -> Answered:
            def decide(answer: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
                sent.check(seen)
                raised: HoldfastError | None = problem
                if not told and isinstance(answer, Left) and not answer.was_holding:
                    raised = LeaseLostError(wish.name, fence, "it was released by force, or its max_hold is over")
                failure = None if raised is None else describe(raised, activation.host.known)
                marks[:] = [Mark("released", operation, seen.at, failure=failure)]
                return sent.changes(*marks), ()

            return await self._entries.leave(
                wish.address,
                wish.site,
                self._entry(branch).id,
                slot=None if hold is None else hold.slot,
                owner=self._owner(branch),
                along=Along(sent.keys, decide),
            )

        answered = await ride(activation, branch, operation, send, line=wish.address, leaving=True)
        activation.host.saw(answered.sight.at)
        if hold is not None:
            self._forget(hold)
        go_on(activation, operation)
        if marks[0].failure is not None:
            raise self._failed(marks[0])

    def _forget(self, hold: RunHold) -> None:
        if self._activation.journal is not None:
            self._activation.journal.holds.pop(hold.guard.key, None)


def wish_for(
    lock: DurableLock,
    operation: str,
    *,
    timeout: Duration | None,
    max_hold: Duration | None,
    note: str,
    mode: str = "",
    weight: int = 1,
) -> LockWish:
    """Check what is asked for, before anything is written."""
    return LockWish(
        str(lock.key),
        address_of(lock.key),
        site_of(lock),
        operation,
        mode,
        check_permits(weight),
        optional_seconds(timeout, what="timeout"),
        optional_seconds(max_hold, what="max_hold", minimum=0.001),
        check_text(note, "note", LONGEST_NOTE),
    )
