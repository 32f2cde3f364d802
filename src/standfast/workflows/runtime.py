"""The runtime of an engine: the services that its runs share, such as threads, timers, presence and hooks."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from msgspec import structs

from standfast.clock import Instant, seconds_between
from standfast.errors import StoreBusyError
from standfast.events import RunLeftAlone, RunMoved, StepRecorded
from standfast.exits import as_failure
from standfast.locks.heartbeat import this_process
from standfast.stores.protocol import Check, Commit, Conflict, Delete, Put
from standfast.threads import Lane
from standfast.trace_context import RunPiece, RunTrace
from standfast.workflows.failures import KnownErrors
from standfast.workflows.fleet import about_key, about_this_process
from standfast.workflows.inbox import AnswerWaits, InboxWriter
from standfast.workflows.queries import Endings
from standfast.workflows.records import WORKERS, Driven, WorkerPresence, WorkerRecord, commit_over, tell_outlived
from standfast.workflows.step_process import StepProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from standfast.audit import AuditedAction
    from standfast.events import Event, Hooks
    from standfast.locks.entry import Lines
    from standfast.locks.heartbeat import Presence
    from standfast.space import Space
    from standfast.trace_context import RunTracing
    from standfast.workflows.activation import Activation
    from standfast.workflows.definition import Step, Workflow
    from standfast.workflows.inbox import Sending
    from standfast.workflows.records import Header, RunState
    from standfast.workflows.replay import Wait


# --- threads for steps that are plain functions --------------------------------------------------------------------

MOST: Final = 32
"""How many plain functions run at a time, by default."""


@final
class Threads:
    """A few threads that run plain functions, each when one is free.

    Attributes:
        queued: How many functions wait for a thread.
    """

    def __init__(self, most: int = MOST) -> None:
        self._free: Final[list[Lane]] = []
        self._all: Final[list[Lane]] = []
        self._permits: Final = asyncio.Semaphore(most)
        self.queued = 0

    async def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- whatever it returns
        """Run a function in a thread, in the caller's context. A cancelled caller does not wait for its end."""
        self.queued += 1
        try:
            await self._permits.acquire()
        finally:
            self.queued -= 1
        try:
            if self._free:
                lane = self._free.pop()
            else:
                lane = Lane(f"step-{len(self._all) + 1}")
                self._all.append(lane)
            work = functools.partial(contextvars.copy_context().run, functools.partial(called, function, args, kwargs))
            future = lane.start(work)
            future.add_done_callback(functools.partial(self._ended, lane))
            return await asyncio.shield(future)
        finally:
            self._permits.release()

    @property
    def busy(self) -> int:
        """How many functions are running."""
        return len(self._all) - len(self._free)

    def _ended(self, lane: Lane, future: asyncio.Future[Any]) -> None:
        self._free.append(lane)
        if not future.cancelled():
            future.exception()  # the task that waited for it has it, or has gone

    def close(self) -> None:
        """Take no more work. A function that still runs keeps its thread; the program does not wait for it."""
        for lane in self._all:
            lane.close(wait=False)


def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- whatever it returns
    """Call a function in a thread; what it raises can be raised where its result is awaited."""
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt) as problem:
        # No future takes the first, a coroutine that waits takes the second for its own end, and the others would end
        # the process of every other run.
        raise as_failure(problem) from problem


# --- runs with which several workers have died in a row, so that one of them may be what kills workers -------------
#
# All runs in the memory of a worker die with it, and only one of them is to blame. A worker therefore drives one
# suspect at a time: the next death shows if it was this one, and the others get on and are suspects no longer.

SUSPICIOUS: Final = 2
"""How many deaths make a suspect. After a single one, which mostly no run has caused, all go on at full speed."""


@final
class Suspects:
    """Which suspect this worker drives, and which wait for their turn here.

    Args:
        most_deaths: How many deaths quarantine a run.

    Attributes:
        driven: The one that this worker drives.
        from_deaths: How many make a run a suspect.
    """

    def __init__(self, most_deaths: int) -> None:
        self.from_deaths: Final = max(1, min(SUSPICIOUS, most_deaths - 1))
        self.driven: str | None = None
        self._waiting: Final[dict[str, None]] = {}

    def may_take(self, run_id: str, deaths: int) -> bool:
        """Return True if a run may be taken up now; if it is a suspect, no other one may before it is gone."""
        if deaths < self.from_deaths:
            return True
        if self.driven not in (None, run_id):
            self._waiting[run_id] = None
            return False
        self.driven = run_id
        self._waiting.pop(run_id, None)
        return True

    def gone(self, run_id: str) -> list[str]:
        """Say that a run is not driven here any more; return the suspects that can be looked at now."""
        if run_id != self.driven:
            return []
        waiting = list(self._waiting)
        self.driven = None
        self._waiting.clear()  # others may have them by now
        return waiting


# --- children that are started in great numbers --------------------------------------------------------------------

CROWD: Final = 200
"""How many runs are at work in this process before children are started a few at a time."""

A_FEW: Final = 32
"""How many more are started then each time."""

A_WHILE: Final = 0.02
"""Seconds between two such times."""


@final
class ChildStarts:
    """Lets runs start their children at once, or, while many runs are at work in this process, a few at a time.

    Ten thousand that are started together would all be in memory at the same time, and each commit, and each look of
    the collector of garbage, would be for all of them: everything else in the process would wait for that. Those that
    are quick to end are worked on by the hundred, at the same speed; of those that take long, more and more begin.
    """

    __slots__ = ("_runtime", "_starting", "_timer", "_waiting")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime: Final = runtime
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._starting = 0

    def begin(self) -> asyncio.Future[None] | None:
        """Return what to wait for before a child is started; None: nothing. Call :meth:`end` with it afterwards."""
        if not self._waiting and self._room() > 0:
            self._starting += 1
            return None
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        self._waiting.append(room)
        if self._timer is None:
            self._timer = loop.call_later(A_WHILE, self._let_a_few)
        return room  # which is counted as starting when it is let

    @property
    def is_waiting(self) -> bool:
        """Whether a child waits to be started."""
        return bool(self._waiting)

    def end(self, room: asyncio.Future[None] | None) -> None:
        """Say that a child is started, or will not be."""
        self._starting -= room is None or (room.done() and not room.cancelled())
        self.let()

    def let(self) -> None:
        """Let as many begin as there is room for, which may be more by now."""
        if self._waiting:
            self._let(self._room())

    def _room(self) -> int:
        return CROWD - (len(self._runtime.loaded) - len(self._runtime.idle) + self._starting)

    def _let_a_few(self) -> None:
        self._let(A_FEW)
        self._timer = asyncio.get_running_loop().call_later(A_WHILE, self._let_a_few) if self._waiting else None

    def _let(self, most: int) -> None:
        while most > 0 and self._waiting:
            if not (first := self._waiting.popleft()).done():
                first.set_result(None)
                self._starting += 1
                most -= 1


# --- what a loaded run needs of the engine that drives it ----------------------------------------------------------

MOST_DEATHS: Final = 5
"""How many workers may die with a run in a row, without its getting any further, before it is quarantined."""

MOST_CONFLICTS: Final = 3
"""How often in a row a run's records may be refused at the same place of its history before it is quarantined."""

MOST_QUEUED: Final = 2_000
"""How many runs that wait in lines are kept in mind."""

LARGEST_QUEUED: Final = 8_000
"""How many bytes the input of such a run has at the most."""

MOST_DUE: Final = 250
"""How many waits that are due end in one turn of the event loop."""

TRY_AGAIN_AFTER: Final = 60.0
"""Seconds after which a worker tries a run again whose code did not fit; then after twice as long, and so on."""

TRY_AGAIN_AT_LEAST: Final = 3_600.0
"""The longest pause between two such attempts, in seconds."""


@final
class Runtime:
    """The services of one engine.

    Attributes:
        space: Where everything lies.
        worker: Under which presence this engine claims runs; None while it has none.
        loaded: The runs that are in memory.
        outlived: The presences that others took for dead though this process lives, and what it drove under them.
        dropped: Those that are not in memory, or not any more, because it was not known what is written.
        dirty: Those that have events which are not written yet.
        idle: Those in which every branch waits, and since when by the process's own clock.
        queued: The last runs that were started here and wait in a line, as they were then, and the version of that.
        turns: The entries of loaded runs that wait for their turn in a line, and where their runs wait for it.
        posts: What is about to be put into inboxes.
        endings: Who waits for the end of a run.
        poke: Called when there is something to do earlier than was known.
        has_room: Returns True if another run may be taken up.
        room: How many runs are in memory at most; 0 for an engine that drives none.
        on_attempt: Called before each attempt of a step, for tests that count them.
        tracing: What traces runs; None: nothing does.
        is_watched: Whether any hook wants events.
        tells_moves: Whether anything wants to know how runs move: if not, :meth:`emit_moved` does nothing.
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
        self.processes: Final = StepProcesses()
        self._errors: Final = tuple(errors)
        self._known: Final[dict[tuple[type[Exception], ...], KnownErrors]] = {}
        self.known: Final = self.known_with(())
        self.workflows: Final[dict[tuple[str, str], Workflow[..., Any]]] = {}
        self.steps: Final[dict[str, Step[..., Any]]] = {}
        self.worker: WorkerPresence | None = None
        self._since = Instant(0)
        self._place: Final = this_process(0, "")
        self._presence: Presence | None = None
        self._presence_lock = asyncio.Lock()
        self.outlived: Final[dict[str, set[str]]] = {}
        self.loaded: Final[dict[str, Activation]] = {}
        self.dropped: Final[set[str]] = set()
        self.dirty: Final[set[Activation]] = set()
        self.idle: Final[dict[Activation, Instant]] = {}
        self.queued: Final[dict[str, tuple[Header, RunState, int]]] = {}
        self.turns: Final[dict[str, tuple[Activation, Wait]]] = {}
        self.inboxes: Final = InboxWriter(space)
        self.answers: Final = AnswerWaits(space)
        self.endings: Final = Endings(space, self.loaded)
        self._told: Final[set[tuple[str, str, str]]] = set()
        self._left: Final[dict[str, Instant]] = {}
        self.kept_elsewhere: Final[set[str]] = set()  # workflows whose runs others delete: those of requests
        self._mismatched: Final[dict[str, tuple[Instant, float]]] = {}  # since when, and for how long
        self._conflicts: Final[dict[str, tuple[int, int]]] = {}
        self.suspects: Final = Suspects(most_deaths)
        self.child_starts: Final = ChildStarts(self)
        self._offset, self._saw_at, self._saw = 0, Instant(0), Instant(0)
        self._alarms: Final[list[tuple[Instant, int, Activation]]] = []
        self._alarm_count = 0
        self.notify: Callable[[], None] = _nothing
        self.made_room: Callable[[Activation], None] = _nothing_with
        self.is_torn_down: Callable[[], bool] = bool
        self.execute: Callable[[Activation], None] = _nothing_with
        self.poll_again: Callable[[str], None] = _nothing_with
        self.has_room: Callable[[], bool] = bool
        self.room = 0
        self.on_attempt: Callable[..., None] | None = None
        self.tracing: Final = cast("RunTracing | None", hooks.tracing)
        # If metrics alone want steps: lists of microseconds, by the names of workflow and step and whether it failed.
        self.step_times: Final[Mapping[tuple[str, str, bool], list[int]] | None] = hooks.tally_of(StepRecorded)
        self._tally_move: Final[Callable[..., None] | None] = hooks.tally_of(RunMoved)
        self.is_watched: Final = bool(hooks)
        self.tells_moves: Final = self.is_watched or self.tracing is not None or self._tally_move is not None

    def known_with(self, errors: tuple[type[Exception], ...]) -> KnownErrors:
        """Return the exceptions that come back as themselves: the engine's, and some more."""
        found = self._known.get(errors)
        if found is None:
            found = self._known[errors] = KnownErrors((*self._errors, *errors))
        return found

    # --- time ----------------------------------------------------------------------------------------------------

    def saw(self, at: Instant) -> None:
        """Take note of the store's time, as an answer of it told.

        The others that were in the same transaction bring the same object, later: they tell nothing new.
        """
        if at is not self._saw:
            self._saw, self._saw_at = at, self.clock.elapsed()
            self._offset = at - self._saw_at

    @property
    def silent_for(self) -> float:
        """For how many seconds the store has not told the time."""
        return seconds_between(self._saw_at, self.clock.elapsed())

    def driven(self, presence: str, at: Instant) -> Driven:
        """Return what a history says about a worker of this process that took a run up."""
        return Driven(presence, at, self._place.host, self._place.process)

    def now(self) -> Instant:
        """Return the store's time, as near as this process can tell without asking."""
        return Instant(self.clock.elapsed() + self._offset)

    def now_at(self, elapsed: Instant) -> Instant:
        """Return the store's time at a reading of the clock, for a caller that needs both."""
        return elapsed + self._offset  # type: ignore[return-value]  # pyright: ignore[reportReturnType] -- an Instant; calling it takes as long

    def alarm(self, at: Instant, activation: Activation) -> None:
        """Ring a run at an instant, unless it is rung before: then it says itself when the next one is due."""
        if activation.rings_at is not None and activation.rings_at <= at:
            return
        activation.rings_at = at
        self._alarm_count += 1
        heapq.heappush(self._alarms, (at, self._alarm_count, activation))
        if self._alarms[0][0] == at:
            self.notify()

    def next_alarm(self) -> Instant | None:
        """Return when the next run is to be rung."""
        while self._alarms and self._alarms[0][2].is_unloading:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def fire_alarms(self) -> None:
        """Ring those whose time has come: a few hundred waits in a turn of the event loop, and the others in the next.

        What is left then is still there, and due.
        """
        now, left = self.now(), MOST_DUE
        while left > 0 and self._alarms and self._alarms[0][0] <= now:
            at, _, activation = heapq.heappop(self._alarms)
            if activation.rings_at != at:
                continue  # an earlier one was set since, and has rung
            activation.rings_at = None
            left -= max(1, activation.expire_waits(now, left))
            due = activation.due_at()
            if due is not None and (due > now or left <= 0) and not activation.is_unloading:
                self.alarm(due, activation)
        if left <= 0:
            self.notify()

    def note_queued(self, run_id: str, header: Header, state: RunState, version: int) -> None:
        """Keep a run in mind that waits in a line: when its turn comes here, nothing of it has to be read."""
        if len(header.input) <= LARGEST_QUEUED:
            self.queued[run_id] = header, state, version
            if len(self.queued) > MOST_QUEUED:
                del self.queued[next(iter(self.queued))]

    # --- being a worker ------------------------------------------------------------------------------------------

    @property
    def reliable_worker(self) -> WorkerPresence | None:
        """This engine's worker; None if there is none that can be relied on."""
        return self.reliable_worker_at(self.clock.elapsed())

    def reliable_worker_at(self, elapsed: Instant) -> WorkerPresence | None:
        """Return this engine's worker, at a reading of the clock in this turn of the event loop."""
        presence = self._presence
        return self.worker if presence is not None and presence.left(elapsed) > 0 else None

    async def ensure_presence(self) -> WorkerPresence:
        """Return this engine's worker; make one if there is none that can be relied on."""
        if (worker := self.reliable_worker) is not None:
            return worker
        async with self._presence_lock:
            if self.worker is None or not self.may_act():
                self.lost_presence()
                await tell_outlived(self.space, tuple(self.outlived))  # before anything is claimed again
                presence = self._presence = await self.lines.heartbeat.join(self.space.lease)
                key, since = self.space.key("worker", presence.name), self.clock.wall()
                self._since, about = since, about_this_process(self.workflows, since=since, room=self.room)
                written = {key: WORKERS.encode(WorkerRecord(since)), about_key(self.space, presence.name): about}
                answer = await commit_over(self.space, (), written)
                self.saw(answer.at)
                if isinstance(answer, Commit) and self._presence is presence:
                    self.worker = WorkerPresence(presence.name, Check(key, answer.versions[key]))
            if self.worker is None:
                raise StoreBusyError("a worker", "its record could not be written")
            return self.worker

    async def retire(self) -> None:
        """Give the worker up, when every run is in other hands."""
        worker, presence = self.worker, self._presence
        self.worker = self._presence = None
        if presence is not None:
            self.lines.heartbeat.leave(presence)
        if worker is None:
            return
        # First no start or claim that is still under way can be written any more; then those that were are seen.
        key, ended = worker.guard.key, WORKERS.encode(WorkerRecord(Instant(0), is_retired=True))
        answer = await self.space.commit(Put(key, ended, worker.guard.expected))
        if isinstance(answer, Conflict):  # others took it for dead, and see to its runs
            return
        if not (await self.space.scan(*self.space.key("own", worker.presence).within(), limit=1)).records:
            gone = Delete(key, answer.versions[key])
            await commit_over(self.space, (gone,), {about_key(self.space, worker.presence): None})

    async def tell_workflows(self) -> None:
        """Write down which workflows the worker has by now, if there is one."""
        worker = self.worker
        if worker is not None:
            about = about_this_process(self.workflows, since=self._since, room=self.room)
            await commit_over(self.space, (worker.guard,), {about_key(self.space, worker.presence): about})

    def may_act(self, presence: str | None = None) -> bool:
        """Return True if this process can still rely on being taken for alive, by a presence if one is given."""
        if presence is not None and (self.worker is None or self.worker.presence != presence):
            return False  # it was lost while something was under way that hangs on it
        return self._presence is not None and self._presence.left() > 0

    def may_act_at_once(self, presence: str, elapsed: Instant) -> bool:
        """Return True if this process may act by a presence, and others can see that it lives, or never could.

        ``elapsed`` is a reading of the clock in this turn of the event loop.
        """
        own, worker = self._presence, self.worker
        if own is None or worker is None or worker.presence != presence:
            return False
        # As Presence.is_proven and Presence.left have it; this is asked before every step.
        return own.deadline > elapsed and not own.over and (own.proof is None or own.proof.is_attached)

    @property
    def is_proven(self) -> bool:
        """Whether others can see that this process lives, or never could: then there is nothing to wait for."""
        return self._presence is None or self._presence.is_proven

    async def until_proven(self) -> None:
        """Wait while others cannot see that this process lives, where they could before."""
        if self._presence is not None:
            await self._presence.until_proven()

    def lost_presence(self) -> None:
        """Stop everything that hangs on a presence which can no longer be relied on."""
        if (presence := self._presence) is not None:
            if self.worker is not None and not presence.was_starved:
                self.outlived[presence.name] = {each.keys.id for each in self.loaded.values() if each.claim is not None}
            self.lines.heartbeat.leave(presence)
        self.worker = self._presence = None
        for activation in tuple(self.loaded.values()):
            if activation.claim is not None and not activation.is_unloading:
                activation.evict()

    # --- telling -------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Tell the hooks, or the log. For ordinary work ask first whether any listens: ``if runtime.is_watched:``."""
        self.hooks.emit(event)

    def emit_moved(
        self,
        run_id: str,
        state: RunState,
        fence: int,
        before: RunState | None,
        header: Header | None = None,
        *,
        position: int = 0,
    ) -> None:
        """Tell that a run is in another state now than ``before``; None: it is new."""
        if self.tracing is not None and not fence and header is not None and before is not None and state.has_ended:
            self.tracing.end_piece(self._unclaimed(run_id, state, before, header))
        tally = self._tally_move
        if tally is None and not self.is_watched:
            return
        started_at = Instant(0) if header is None else header.started_at
        was_ready_for = orphaned_for = None
        if fence and state.status == "running":
            is_tried_again = before is not None and before.is_misfit  # which says nothing about how busy workers are
            was_ready_for = 0.0 if before is None else None if is_tried_again else ready_for(before, state.changed_at)
            orphaned_at = None if before is None else before.orphaned_at
            orphaned_for = None if orphaned_at is None else max(0.0, seconds_between(orphaned_at, state.changed_at))
        if tally is not None:
            took = state.changed_at - started_at if started_at else None
            tally(state.workflow, state.status, before is None, took, was_ready_for, orphaned_for)
            return
        about = state.waits_for or (state.failure.type if state.failure is not None else state.cancel or "")
        since = state.changed_at if before is None else before.changed_at
        self.hooks.emit(
            RunMoved(
                at=self.clock.wall(),
                run=run_id,
                workflow=state.workflow,
                status=state.status,
                fence=fence,
                waited=max(0.0, seconds_between(since, state.changed_at)),
                about=about,
                key="" if header is None else ", ".join([each.label for each in header.lines]),
                before="" if before is None else before.status,
                worker=state.owner or ("" if before is None else before.owner),
                claims=state.claims,
                position=position or state.position,
                started_at=started_at,
                changed_at=state.changed_at,
                ready_for=was_ready_for,
                orphaned_for=orphaned_for,
                parent="" if header is None else header.parent,
            )
        )

    def _unclaimed(self, run_id: str, state: RunState, before: RunState, header: Header) -> RunPiece:
        """Return the last piece of a run that was ended while no worker of this process drove it."""
        place = (self.space.namespace, self.space.tenant, run_id, header.incarnation)
        return RunPiece(
            trace=RunTrace(place, header.trace),
            run=run_id,
            workflow=header.workflow,
            version=header.version,
            status=state.status,
            error="" if state.failure is None else state.failure.type,
            schedule=header.schedule,
            nominal_at=header.nominal_at,
            started_at=header.started_at,
            claimed_at=state.changed_at,
            ended_at=state.changed_at,
            worker="",
            fence=0,
            history=(),
            number=before.pieces,
            first=0,
        )

    def linked(self, sending: Sending) -> Sending:
        """Return what is sent to a run with the trace context of what sends it, if there is one."""
        caller = None if self.tracing is None else self.tracing.current()
        return sending if caller is None else structs.replace(sending, trace=caller.stored)

    def leave_alone(self, run_id: str, state: RunState) -> None:
        """Tell, once, that the code of a run is not here, and do not look at it for a while."""
        self._left[run_id] = self.clock.elapsed()
        if (run_id, state.workflow, state.version) not in self._told:
            self._told.add((run_id, state.workflow, state.version))
            self.emit(RunLeftAlone(at=self.clock.wall(), run=run_id, workflow=state.workflow, version=state.version))

    def has_code_of(self, run_id: str, state: RunState) -> bool:
        """Return True if the code of a run is here; if not, leave it alone for a while."""
        if (state.workflow, state.version) in self.workflows:
            return True
        self.leave_alone(run_id, state)
        return False

    def is_left_alone(self, run_id: str) -> bool:
        """Return True if the code of a run was not here, or did not fit, not long ago."""
        since = self._left.get(run_id)
        if since is not None and seconds_between(since, self.clock.elapsed()) <= TRY_AGAIN_AFTER:
            return True
        self._left.pop(run_id, None)  # what is older is forgotten
        return self.is_mismatched(run_id)

    def forget_left(self) -> None:
        """Leave nothing alone any longer: there is more code here now."""
        self._left.clear()

    # --- what became of a run ------------------------------------------------------------------------------------

    def leave_mismatched(self, run_id: str) -> None:
        """Leave a run alone for a while, because the code here does not fit its history."""
        _, pause = self._mismatched.get(run_id, (None, TRY_AGAIN_AFTER / 2))
        self._mismatched[run_id] = self.clock.elapsed(), min(2 * pause, TRY_AGAIN_AT_LEAST)

    def try_again(self, run_id: str) -> None:
        """Do not leave a run alone any longer that was found not to fit."""
        self._mismatched.pop(run_id, None)

    def is_mismatched(self, run_id: str) -> bool:
        """Return True if a run was found not to fit the code here, not long ago."""
        found = self._mismatched.get(run_id)
        return found is not None and seconds_between(found[0], self.clock.elapsed()) <= found[1]

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
        if activation.mismatch is None and self._mismatched:
            self._mismatched.pop(run_id, None)
        if self._conflicts and (activation.is_stuck or not activation.has_conflicted):
            self._conflicts.pop(run_id, None)
        if self.loaded.get(run_id) is activation:
            del self.loaded[run_id]
        self.dirty.discard(activation)
        self.idle.pop(activation, None)
        if activation.ended is not None:
            self.endings.tell(run_id, activation.ended)
        elif (parent := self.loaded.get(activation.header.parent)) is not None and activation.claim is not None:
            parent.notify()  # it relied on being told here: others may have ended the run, or drive it now
        if activation.is_evicted and activation.ended is None:
            self.dropped.add(run_id)
        if activation.inbox_poll.is_waiting or (activation.is_evicted and activation.ended is None):
            self.poll_again(run_id)
        if self.suspects.driven == run_id:
            self.clear_suspect(run_id)
        if self.child_starts.is_waiting:
            self.child_starts.let()
        self.made_room(activation)

    def clear_suspect(self, run_id: str) -> None:
        """A run is not driven here: if it was a suspect, another one may be."""
        for other in self.suspects.gone(run_id):
            self.poll_again(other)


class AnyEngine(Protocol):
    """An engine, as far as its runs, and what starts them, need it."""

    @property
    def runtime(self) -> Runtime:
        """The services of the engine; refused while it is not open."""
        ...

    @property
    def drives(self) -> bool:
        """Whether it executes runs."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether it executes runs, and should execute one more that is started here."""
        ...

    def acts(self, action: str, subject: str = "", reason: str = "", **details: object) -> AuditedAction:
        """Return what an action is done in: it is recorded if an operator does it."""
        ...


def ready_for(before: RunState, now: Instant) -> float | None:
    """Return for how many seconds a run waited for nothing but a worker; None: its state does not tell.

    One that waited for a signal, or in a line, was ready at some time after its state last changed.
    """
    if before.misfit_at is not None and not before.owner:  # what tried it since could not drive it
        return max(0.0, seconds_between(before.misfit_at, now))
    if before.until is not None:
        return max(0.0, seconds_between(before.until, now)) if before.until <= now else None
    is_free = before.status in ("pending", "running") and before.ticket is None
    return max(0.0, seconds_between(before.changed_at, now)) if is_free else None


def _nothing() -> None:
    """Nothing is called yet."""


def _nothing_with(_: object) -> None:
    """Nothing is called yet."""
