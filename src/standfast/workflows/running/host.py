"""What a loaded run needs of the engine that drives it."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakValueDictionary

from msgspec import Struct

from standfast.clock import Instant, seconds_between
from standfast.errors import StoreBusyError
from standfast.events import RunLeftAlone, RunMoved
from standfast.stores.protocol import Check, Commit, Delete
from standfast.workflows.operating.awaiting import Endings
from standfast.workflows.starting.posting import Posts
from standfast.workflows.storing.committing import commit_over
from standfast.workflows.storing.failures import KnownErrors
from standfast.workflows.storing.records import WORKERS, Worker
from standfast.workflows.working.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.events import Event, Hooks
    from standfast.locks.driving.lines import Lines
    from standfast.locks.driving.presence import Presence
    from standfast.space import Space
    from standfast.workflows.context.performing import CurrentStep
    from standfast.workflows.declaring.definition import Step, Workflow
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.threads import Threads
    from standfast.workflows.storing.records import Life, Standing

MOST_DEATHS: Final = 5
"""How many workers may die with a run in a row, without its getting any further, before it is quarantined."""

MOST_CONFLICTS: Final = 3
"""How often in a row a run's records may be refused at the same place of its history before it is quarantined."""

TRY_AGAIN_AFTER: Final = 60.0
"""Seconds after which a worker tries a run again whose code did not fit."""


class Attendance(Struct, frozen=True):
    """This engine as a worker: the name of its presence, and the guard of everything that it claims."""

    presence: str
    guard: Check


@final
class Host:
    """The services of one engine.

    Attributes:
        space: Where everything lies.
        worker: Under which presence this engine claims runs; None while it has none.
        loaded: The runs that are in memory.
        dropped: Those that are not in memory, or not any more, because it was not known what is written.
        dirty: Those that have marks which are not written yet.
        idle: Those in which every branch waits, and since when by the process's own clock.
        posts: What is about to be put into inboxes.
        endings: Who waits for the end of a run.
        doors: Through which one run at a time enters a line that is not its first.
        poke: Called when there is something to do earlier than was known.
        has_room: Tells whether another run may be taken up.
        on_attempt: Called before each attempt of a step, for tests that count them.
    """

    def __init__(
        self,
        space: Space,
        lines: Lines,
        hooks: Hooks,
        threads: Threads,
        errors: Iterable[type[Exception]] = (),
        *,
        most_deaths: int = MOST_DEATHS,
    ) -> None:
        self.space, self.lines, self.clock, self.hooks, self.threads = space, lines, lines.clock, hooks, threads
        self.most_deaths: Final = most_deaths
        self._errors: Final = tuple(errors)
        self._known: Final[dict[tuple[type[Exception], ...], KnownErrors]] = {}
        self.known: Final = self.known_with(())
        self.workflows: Final[dict[tuple[str, str], Workflow[..., Any]]] = {}
        self.steps: Final[dict[str, Step[..., Any]]] = {}
        self.worker: Attendance | None = None
        self._presence: Presence | None = None
        self._attending = asyncio.Lock()
        self.doors: Final[WeakValueDictionary[tuple[str, ...], asyncio.Lock]] = WeakValueDictionary()
        self.loaded: Final[dict[str, Activation]] = {}
        self.dropped: Final[set[str]] = set()
        self.dirty: Final[set[Activation]] = set()
        self.idle: Final[dict[Activation, Instant]] = {}
        self.posts: Final = Posts(self)
        self.endings: Final = Endings(space, self.loaded)
        self._told: Final[set[tuple[str, str, str]]] = set()
        self._left: Final[dict[str, Instant]] = {}
        self._mismatched: Final[dict[str, Instant]] = {}
        self._conflicts: Final[dict[str, tuple[int, int]]] = {}
        self.suspects: Final = Suspects(most_deaths)
        self._offset = 0
        self._alarms: Final[list[tuple[Instant, int, Activation]]] = []
        self._rung = 0
        self.poke: Callable[[], None] = _nothing
        self.take: Callable[[Activation], None] = _nothing_with
        self.look_again: Callable[[str], None] = _nothing_with
        self.has_room: Callable[[], bool] = bool
        self.on_attempt: Callable[[CurrentStep], None] | None = None

    def known_with(self, errors: tuple[type[Exception], ...]) -> KnownErrors:
        """Return the exceptions that come back as themselves: the engine's, and some more."""
        found = self._known.get(errors)
        if found is None:
            found = self._known[errors] = KnownErrors((*self._errors, *errors))
        return found

    # --- time ----------------------------------------------------------------------------------------------------

    def saw(self, at: Instant) -> None:
        """Take note of the store's time, as an answer of it told."""
        self._offset = at - self.clock.elapsed()

    def now(self) -> Instant:
        """Return the store's time, as near as this process can tell without asking."""
        return Instant(self.clock.elapsed() + self._offset)

    def alarm(self, at: Instant, activation: Activation) -> None:
        """Ring a run at an instant."""
        self._rung += 1
        heapq.heappush(self._alarms, (at, self._rung, activation))
        if self._alarms[0][0] == at:
            self.poke()

    def next_alarm(self) -> Instant | None:
        """Return when the next run is to be rung."""
        while self._alarms and self._alarms[0][2].is_unloading:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def ring(self) -> None:
        """Ring those whose time has come."""
        now = self.now()
        while self._alarms and self._alarms[0][0] <= now:
            _, _, activation = heapq.heappop(self._alarms)
            activation.ring(now)

    # --- being a worker ------------------------------------------------------------------------------------------

    async def attend(self) -> Attendance:
        """Return this engine's worker; make one if there is none that can be relied on."""
        if self.worker is not None and self.may_act():
            return self.worker
        async with self._attending:
            if self.worker is None or not self.may_act():
                self.lost_presence()
                presence = self._presence = await self.lines.keeper.attend(self.space.lease)
                key = self.space.key("worker", presence.name)
                answer = await commit_over(self.space, (), {key: WORKERS.encode(Worker(self.clock.wall()))})
                self.saw(answer.at)
                if isinstance(answer, Commit) and self._presence is presence:
                    self.worker = Attendance(presence.name, Check(key, answer.versions[key]))
            if self.worker is None:
                raise StoreBusyError("a worker", "its record could not be written")
            return self.worker

    async def retire(self) -> None:
        """Give the worker up, when every run is in other hands."""
        worker, presence = self.worker, self._presence
        self.worker = self._presence = None
        if presence is not None:
            self.lines.keeper.dismiss(presence)
        if worker is not None:
            own = self.space.key("own", worker.presence)
            if not (await self.space.scan(*own.within(), limit=1)).records:
                await self.space.commit(Delete(worker.guard.key, worker.guard.expected))

    def may_act(self, presence: str | None = None) -> bool:
        """Tell whether this process can still rely on being taken for alive, by a presence if one is given."""
        if presence is not None and (self.worker is None or self.worker.presence != presence):
            return False  # it was lost while something was under way that hangs on it
        return self._presence is not None and self._presence.left() > 0

    async def until_proven(self) -> None:
        """Wait while others cannot see that this process lives, where they could before."""
        if self._presence is not None:
            await self._presence.until_proven()

    def lost_presence(self) -> None:
        """Stop everything that hangs on a presence which can no longer be relied on."""
        if self._presence is not None:
            self.lines.keeper.dismiss(self._presence)
        self.worker = self._presence = None
        for activation in tuple(self.loaded.values()):
            if activation.claim is not None and not activation.is_unloading:
                activation.depose()

    # --- telling -------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Tell the hooks."""
        if self.hooks:
            self.hooks.emit(event)

    def emit_moved(self, run_id: str, life: Life, fence: int, since: Instant, lines: Iterable[Standing] = ()) -> None:
        """Tell that a run is in another state now."""
        if self.hooks:
            about = life.waits_for or (life.failure.type if life.failure is not None else life.cancel or "")
            self.hooks.emit(
                RunMoved(
                    at=self.clock.wall(),
                    run=run_id,
                    workflow=life.workflow,
                    status=life.status,
                    fence=fence,
                    waited=max(0.0, seconds_between(since, life.changed_at)),
                    about=about,
                    key=", ".join(each.label for each in lines),
                )
            )

    def leave_alone(self, run_id: str, life: Life) -> None:
        """Tell, once, that the code of a run is not here, and do not look at it for a while."""
        self._left[run_id] = self.clock.elapsed()
        if (run_id, life.workflow, life.version) not in self._told:
            self._told.add((run_id, life.workflow, life.version))
            self.emit(RunLeftAlone(at=self.clock.wall(), run=run_id, workflow=life.workflow, version=life.version))

    def has_code_of(self, run_id: str, life: Life) -> bool:
        """Tell whether the code of a run is here; if not, leave it alone for a while."""
        if (life.workflow, life.version) in self.workflows:
            return True
        self.leave_alone(run_id, life)
        return False

    def is_left_alone(self, run_id: str) -> bool:
        """Tell whether the code of a run was not here, or did not fit, not long ago."""
        return _is_recent(self._left, run_id, self.clock.elapsed()) or self.is_mismatched(run_id)

    def look_at_all(self) -> None:
        """Leave nothing alone any longer: there is more code here now."""
        self._left.clear()

    # --- what became of a run ------------------------------------------------------------------------------------

    def leave_mismatched(self, run_id: str) -> None:
        """Leave a run alone for a while, because the code here does not fit its history."""
        self._mismatched[run_id] = self.clock.elapsed()

    def try_again(self, run_id: str) -> None:
        """Do not leave a run alone any longer that was found not to fit."""
        self._mismatched.pop(run_id, None)

    def is_mismatched(self, run_id: str) -> bool:
        """Tell whether a run was found not to fit the code here, not long ago."""
        return _is_recent(self._mismatched, run_id, self.clock.elapsed())

    def conflicted(self, run_id: str, position: int) -> bool:
        """Count that a run's record was refused at a position of its history; return True if it was too often there.

        Once is normal: the record was written though that was not known, and the run is loaded with it.
        """
        before, times = self._conflicts.get(run_id, (position, 0))
        times = times + 1 if before == position else 1
        self._conflicts[run_id] = position, times
        return times > MOST_CONFLICTS

    def gone(self, activation: Activation) -> None:
        """A run is no longer in memory."""
        run_id = activation.keys.id
        self._left.pop(run_id, None)
        if activation.is_stuck or not activation.has_conflicted:
            self._conflicts.pop(run_id, None)
        if self.loaded.get(run_id) is activation:
            del self.loaded[run_id]
        self.dirty.discard(activation)
        self.idle.pop(activation, None)
        if activation.ended is not None:
            self.endings.tell(run_id, activation.ended)
        if activation.is_deposed and activation.ended is None:
            self.dropped.add(run_id)
        if activation.news.is_waiting or (activation.is_deposed and activation.ended is None):
            self.look_again(run_id)
        self.absolve(run_id)
        self.poke()

    def absolve(self, run_id: str) -> None:
        """A run is not driven here: if it was a suspect, another one may be."""
        for other in self.suspects.gone(run_id):
            self.look_again(other)


def _is_recent(since: dict[str, Instant], run_id: str, now: Instant) -> bool:
    """Tell whether something was found of a run not long ago; what is older is forgotten."""
    found = since.get(run_id)
    if found is not None and seconds_between(found, now) > TRY_AGAIN_AFTER:
        del since[run_id]
        return False
    return found is not None


def _nothing() -> None:
    """Nobody listens yet."""


def _nothing_with(_: object) -> None:
    """Nobody listens yet."""
