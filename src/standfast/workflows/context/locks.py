"""Locks that a run holds, however long it sleeps: a place in the same lines that processes stand in.

The place is anchored to the run, not to the process that drives it. It is taken and left in one commit with the mark
that says so, so whoever has to clean up after a run finds in its history every line that it may stand in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import Raw

from standfast.clock import later, seconds_between
from standfast.durations import optional_seconds
from standfast.errors import (
    HoldMisuseError,
    HoldTimeoutError,
    LeaseLostError,
    ReentryError,
    StandfastError,
    WaitCycleError,
    WithdrawnError,
)
from standfast.events import RunLocked, RunUnlocked
from standfast.locks.algebra.line import Waiting
from standfast.locks.algebra.record import check_permits
from standfast.locks.driving.records import LineKeys
from standfast.locks.driving.run_entries import RunTurn
from standfast.locks.locking import site_of
from standfast.locks.options import LONGEST_NOTE, check_text
from standfast.scope import address_of
from standfast.workflows.context.asking import ask
from standfast.workflows.context.lock_marks import ASKED, GRANTING, Granting, LockWish, RunHold
from standfast.workflows.context.riding import go_on
from standfast.workflows.context.standing import Standing
from standfast.workflows.running.branches import OVER, Wait
from standfast.workflows.running.control import RunCancelled, Unload
from standfast.workflows.running.journal import Held
from standfast.workflows.running.losing import raise_lost
from standfast.workflows.storing.failures import describe, restore
from standfast.workflows.storing.records import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.locks.locking import DurableLock
    from standfast.workflows.context.standing import Place
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch

LOCK: Final = ("lock", "held", "released", "went_on", "cancelled")


@final
class ContextLock:
    """A lock that is about to be held: enter it with ``async with``. Get it from ``ctx.mutex`` and its like."""

    __slots__ = ("_activation", "_find_branch", "_hold", "_standing", "_wish")

    def __init__(self, activation: Activation, find_branch: Callable[[str], Branch], wish: LockWish) -> None:
        self._activation, self._find_branch, self._wish = activation, find_branch, wish
        self._standing: Standing | None = None
        self._hold: RunHold | None = None

    def __repr__(self) -> str:
        return f"<ContextLock {self._wish.operation} {self._wish.name}>"

    async def __aenter__(self) -> RunHold:
        return await ask(self._activation, self._come_in())

    async def _come_in(self) -> RunHold:
        wish = self._wish
        if self._standing is not None:
            raise HoldMisuseError(wish.name, "it was entered already; call ctx.mutex(...) anew for each block")
        branch = self._find_branch(f"ctx.{wish.operation}")
        standing = self._standing = Standing(self._activation, branch, branch.next_id(wish.operation), wish)
        mark = await self._turn(standing)
        if mark is None:
            place, until = await self._enter(standing)
            return await self._or_leave(standing, until, place)
        if mark.kind == "released":
            raise self._failed(mark)
        self._compare(mark)
        standing.asked_at = mark.at
        return await self._or_leave(standing, mark.until, None, is_replayed=True)

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        await ask(self._activation, self._go_out(problem))

    async def _go_out(self, problem: BaseException | None) -> None:
        standing, hold = self._standing, self._hold
        if isinstance(problem, Unload) or standing is None or hold is None:
            return
        mark = await self._turn_undisturbed(standing)
        if mark is None:
            mark = await standing.leave(hold=hold if problem is None else None)
            self._has_left(standing, hold)
            self._tell_unlocked(standing, hold, mark.at)
            go_on(self._activation, standing.operation)
        else:
            self._has_left(standing, hold)
            await self._pass_by(standing)
        if mark.failure is not None:
            raise self._failed(mark)

    def _has_left(self, standing: Standing, hold: RunHold) -> None:
        """Rely on the lock no longer. That it is lost may be found while it is left: then that is no news any more."""
        if self._activation.journal is not None:
            self._activation.journal.holds.pop(hold.guard.key, None)
        lost = standing.branch.lost
        if lost is not None and (lost.key, lost.fence) == (hold.key, hold.fence):
            standing.branch.lost = None

    # --- the history ---------------------------------------------------------------------------------------------

    async def _turn(self, standing: Standing) -> Mark | None:
        return await self._activation.turn(standing.branch, LOCK, standing.operation)

    async def _turn_undisturbed(self, standing: Standing) -> Mark | None:
        """As ``_turn``, for one who leaves."""
        return await self._activation.turn(standing.branch, LOCK, standing.operation, is_leaving=True)

    async def _pass_by(self, standing: Standing) -> None:
        if await self._turn_undisturbed(standing) is None:
            go_on(self._activation, standing.operation)

    def _compare(self, mark: Mark) -> None:
        asked = ASKED.decode(mark.value or b"{}")
        if asked.address != self._wish.address:
            self._activation.differ(f"the lock {asked.name!r}", f"the lock {self._wish.name!r}")
            raise Unload

    def _failed(self, mark: Mark) -> Exception:
        if mark.failure is None:
            return LeaseLostError(self._wish.name, 0, "no reason was recorded")
        return restore(mark.failure, self._activation.host.known)

    # --- getting in ----------------------------------------------------------------------------------------------

    async def _enter(self, standing: Standing) -> tuple[Place, Instant | None]:
        entered = await standing.enter()
        if isinstance(entered, StandfastError):
            host = self._activation.host
            mark = Mark("released", standing.operation, host.now(), failure=describe(entered, host.known))
            self._activation.note(mark)
            raise self._failed(mark)
        place, at = entered
        standing.asked_at = at
        return place, None if self._wish.timeout is None else later(at, self._wish.timeout)

    async def _or_leave(
        self, standing: Standing, until: Instant | None, place: Place, *, is_replayed: bool = False
    ) -> RunHold:
        try:
            return await self._wait_for_turn(standing, until, place, is_replayed=is_replayed)
        except (RunCancelled, LeaseLostError):
            if await self._turn_undisturbed(standing) is None:
                self._tell_unlocked(standing, None, (await standing.leave()).at)
                go_on(self._activation, standing.operation)
            else:
                await self._pass_by(standing)
            raise

    async def _wait_for_turn(
        self, standing: Standing, until: Instant | None, place: Place, *, is_replayed: bool
    ) -> RunHold:
        if is_replayed:
            mark = await self._turn(standing)
            if mark is not None and mark.kind == "held":
                return self._take(standing, GRANTING.decode(mark.value or b""))
            if mark is not None:
                await self._pass_by(standing)
                raise self._failed(mark)
            place = await standing.look()
        if isinstance(place, Waiting) and (circle := await standing.circle()):
            await self._give_up(standing, WaitCycleError(self._wish.name, standing.operation, circle))
        if isinstance(place, Waiting) and (parent := await standing.held_by_parent()):
            await self._give_up(standing, ReentryError(self._wish.name, parent, standing.operation))
        while not isinstance(place, RunTurn):
            place = await (self._stand_again(standing) if place is None else self._wait_a_while(standing, until))
        if standing.branch.lost is not None:
            raise_lost(self._activation, standing.branch, standing.operation)
        held = Granting(place.fence, place.slot, place.granted_at, place.ends_at)
        now, packed = self._activation.host.now(), Raw(msgspec.json.encode(held))
        self._activation.note(Mark("held", standing.operation, now, packed))
        self._tell_locked(standing, held)
        return self._take(standing, held)

    def _tell_unlocked(self, standing: Standing, hold: RunHold | None, at: Instant) -> None:
        host = self._activation.host
        if host.hooks:
            host.emit(
                RunUnlocked(
                    at=host.clock.wall(),
                    run=self._activation.keys.id,
                    step=standing.operation,
                    key=self._wish.name,
                    fence=0 if hold is None else hold.fence,
                    held=0.0 if hold is None else max(0.0, seconds_between(hold.granted_at, at)),
                )
            )

    def _tell_locked(self, standing: Standing, held: Granting) -> None:
        host = self._activation.host
        if host.hooks:
            waited = max(0.0, seconds_between(standing.asked_at, held.granted_at))
            host.emit(
                RunLocked(
                    at=host.clock.wall(),
                    run=self._activation.keys.id,
                    step=standing.operation,
                    key=self._wish.name,
                    fence=held.fence,
                    waited=waited,
                )
            )

    def _take(self, standing: Standing, held: Granting) -> RunHold:
        activation, wish = self._activation, self._wish
        grant = LineKeys(activation.host.space, wish.address).grant(held.slot)
        if activation.journal is not None:
            path = standing.branch.path
            activation.journal.holds[grant] = Held(
                held.fence, wish.name, path, wish.address, held.ends_at, standing.entry
            )
        self._hold = RunHold(wish.name, held, grant)
        return self._hold

    async def _stand_again(self, standing: Standing) -> Place:
        """Enter once more, unless an operator has taken it out."""
        if await standing.was_withdrawn():
            await self._give_up(standing, WithdrawnError(self._wish.name))
        entered = await standing.enter_again()
        if isinstance(entered, StandfastError):
            await self._give_up(standing, entered)
            raise Unload  # it was raised
        return entered

    async def _give_up(self, standing: Standing, problem: StandfastError) -> None:
        mark = await standing.leave(problem)
        self._tell_unlocked(standing, None, mark.at)
        go_on(self._activation, standing.operation)
        raise self._failed(mark)

    async def _wait_a_while(self, standing: Standing, until: Instant | None) -> Place:
        """Wait until something may have changed; return the place then."""
        activation, wish, branch = self._activation, self._wish, standing.branch
        as_of = activation.news.looks
        place, look_at = await standing.look_after()
        if not isinstance(place, Waiting):
            return place
        if until is not None and until <= activation.host.now():
            await self._give_up(standing, HoldTimeoutError(wish.name, wish.timeout or 0.0, standing.holders()))
        wakes_at = min((each for each in (until, look_at) if each is not None), default=None)
        line = wish.address if wakes_at is not None and wakes_at != until else ()

        async def look(wait: Wait) -> None:
            found = await standing.look()
            if not isinstance(found, Waiting):
                wait.settle(found)

        wait = Wait(f"the {wish.site.kind} {wish.name!r}", wakes_at, look, line=line, as_of=as_of)
        found = await activation.wait(branch, wait)
        if branch.cancel is not None:
            activation.raise_cancel(branch, standing.operation)
        if activation.is_unloading:
            raise Unload
        if found is OVER:
            return await standing.look()
        return found if isinstance(found, RunTurn) else None


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
