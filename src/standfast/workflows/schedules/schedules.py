"""The schedules of an engine, as users see them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, final

from msgspec import Raw, Struct, structs

from standfast.clock import Instant, seconds_between
from standfast.errors import (
    DeclarationError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    StoreBusyError,
    UnknownWorkflowError,
    WorkflowAlreadyExistsError,
)
from standfast.events import SchedulePaused
from standfast.ids import new_id
from standfast.locks.inspect import length
from standfast.workflows.catalog import as_remote, find_declared
from standfast.workflows.definition import Bound, Workflow, name_of
from standfast.workflows.run import Run
from standfast.workflows.schedules.cron import in_words
from standfast.workflows.schedules.spec import (
    OVERLAPS,
    Overlap,
    Schedule,
    Stored,
    change,
    changing,
    commit,
    creating,
    digest_of,
    find,
    find_all,
    first_after,
    new_state,
    pause,
    resume,
    run_id_of,
    with_timer,
)
from standfast.workflows.schedules.ticker import empty, queued, start_run, workflow_of
from standfast.workflows.start import pack_arguments
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from standfast.workflows.catalog import Startable
    from standfast.workflows.runtime import AnyEngine
    from standfast.workflows.schedules.spec import ScheduleSnapshot, ScheduleSpec


# --- what can be known of a schedule from outside ------------------------------------------------------------------


LATE: Final = 30.0
"""Seconds after which a tick that has not fired is late: a worker that lives fires it within one."""


class ScheduleInfo(Struct, frozen=True):
    """How a schedule is. Points in time are those that the schedule names, without jitter.

    Attributes:
        id: The schedule.
        workflow: What it starts.
        input: What that is started with, by name.
        cron: Its cron expression; None if it has a period.
        every: Its period in seconds; None if it has a cron expression.
        zone: The time zone of ``cron``.
        overlap: What a tick does while a run is unfinished.
        backfill: Whether ticks that no worker was there for are made up for.
        most_backfilled: How many of them at most.
        jitter: By how many seconds a tick fires later at most.
        created_at: Since when it is there.
        is_paused: Whether it fires at all.
        note: Why it is paused.
        next_at: Its next tick; None while it is paused.
        fires_at: When that fires, with its jitter.
        started: How many runs its ticks have started.
        skipped: How many ticks were dropped because a run of the schedule was unfinished.
        refused: How many ticks started nothing because of a limit of the workflow, or an error; see ``problem``.
        missed: How many ticks were left out because they were late.
        more_missed: Whether there were more than ``missed``, too many to count.
        last_run: The run that the latest of its ticks has started; empty: none.
        last_skipped_at: The latest tick that was skipped or refused.
        last_missed_at: The latest tick that was missed.
        problem: Why the latest tick that started nothing did not.
        queued: The runs that wait for their turn, the first in line first.
    """

    id: str
    workflow: str
    input: Any
    cron: str | None
    every: float | None
    zone: str
    overlap: Overlap
    backfill: bool
    most_backfilled: int
    jitter: float
    created_at: Instant
    is_paused: bool
    note: str
    next_at: Instant | None
    fires_at: Instant | None
    started: int
    skipped: int
    refused: int
    missed: int
    more_missed: bool
    last_run: str
    last_skipped_at: Instant | None
    last_missed_at: Instant | None
    problem: str
    queued: tuple[str, ...] = ()

    @property
    def when(self) -> str:
        """When it fires, in words: ``Every 30 s``, ``At 09:00 on Monday through Friday, Europe/Berlin``."""
        if self.cron is not None:
            return in_words(self.cron, self.zone)
        if self.every is None:
            return ""
        if self.every in _EVERY:
            return f"Every {_EVERY[self.every]}"
        return f"Every {length(self.every)}"

    def is_late(self, now: Instant) -> bool:
        """Return True if it should have fired some time ago: no worker polls it."""
        return self.fires_at is not None and seconds_between(self.fires_at, now) > LATE


_EVERY: Final = {60.0: "minute", 3_600.0: "hour", 86_400.0: "day", 604_800.0: "week"}
"""Lengths that have a name."""


class Tick(Struct, frozen=True):
    """A tick of a schedule.

    Attributes:
        nominal_at: The moment that the schedule means.
        run: The id of its run.
        is_started: Whether there is that run.
    """

    nominal_at: Instant
    run: str
    is_started: bool


def info_of(schedule_id: str, stored: Stored, queued: Sequence[str] = ()) -> ScheduleInfo:
    """Return what a stored schedule says."""
    spec, state = stored.spec, stored.state
    return ScheduleInfo(
        schedule_id,
        spec.workflow,
        PLAIN.unpack(spec.input),
        spec.cron,
        spec.every,
        spec.zone,
        spec.overlap,
        spec.backfill,
        spec.most_backfilled,
        spec.jitter,
        stored.created_at,
        state.paused,
        stored.note,
        None if state.paused else state.next_at,
        None if state.paused else stored.wake_at,
        state.fired - stored.skipped - stored.refused,
        stored.skipped,
        stored.refused,
        state.missed,
        state.uncounted,
        stored.last_run,
        stored.last_skipped_at,
        state.last_missed_at,
        stored.problem,
        tuple(queued),
    )


# --- the schedules of an engine, as users see them -----------------------------------------------------------------

Exists: TypeAlias = Literal["raise", "keep", "replace"]
"""What to do if there is a schedule with that id."""

TRIES: Final = 50
MOST_MADE_UP: Final = 10_000
"""How many ticks one call makes up for."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@final
class Schedules:
    """The schedules of a namespace and tenant. Get them from ``engine.schedules``.

        await engine.schedules.create(sf.Schedule(report, "eu", id="daily-report", cron="0 9 * * mon-fri"))
        await engine.schedules.pause("daily-report", "the source is down")

    They lie in the store, and any engine that drives runs and has the workflow fires them. All of this works with
    an engine that drives nothing, too.
    """

    def __init__(self, engine: AnyEngine) -> None:
        self._engine: Final = engine

    # --- making --------------------------------------------------------------------------------------------------

    async def create(self, schedule: Schedule, *, exists: Exists = "raise") -> ScheduleInfo:
        """Make a schedule. It is durable when this returns.

        Args:
            schedule: What to start, and when.
            exists: If there is one with that id: ``"raise"``, ``"keep"`` it as it is, or ``"replace"`` what it says;
                then its counts stay, and it stays paused if it is.

        Raises:
            ScheduleExistsError: There is a schedule with that id. It is as it was.
        """
        if exists not in ("raise", "keep", "replace"):
            raise DeclarationError(
                "the exists of a schedule", "it must be 'raise', 'keep' or 'replace'", repr(exists)[:60]
            )
        spec = self._spec(schedule)
        async with self._engine.acts("schedule.create", schedule.id, workflow=spec.workflow) as told:
            for _ in range(TRIES):
                seen = await self._find(schedule.id)
                if seen is None:
                    made = await self._create(schedule, spec)
                    if made is not None:
                        return made
                elif exists == "raise":
                    raise ScheduleExistsError(schedule.id)
                elif exists == "keep":
                    told.outcome = "nothing"
                    return info_of(schedule.id, seen.stored)
                else:
                    return await self._change(schedule.id, partial(_with_spec, spec))
            raise _busy(schedule.id)

    async def change(self, schedule: Schedule) -> ScheduleInfo:
        """Replace what a schedule says. Its counts stay, it stays paused if it is, and so do runs that wait their turn.

        A period begins anew, unless it is the same. What has fired does not fire again.
        """
        spec = self._spec(schedule)
        async with self._engine.acts("schedule.change", schedule.id, workflow=spec.workflow):
            return await self._change(schedule.id, partial(_with_spec, spec))

    async def declare(self, schedules: Iterable[Schedule]) -> None:
        """Make schedules that code declares, and change those whose declaration has changed since.

        What was changed by hand stays until then. A schedule that is no longer declared goes on: delete it.
        """
        for schedule in schedules:
            spec = self._spec(schedule)
            digest = digest_of(spec)
            seen = await self._find(schedule.id)
            if seen is None and await self._create(schedule, spec, digest) is not None:
                continue
            await self._change(schedule.id, partial(_declared, spec, digest))

    async def _create(self, schedule: Schedule, spec: ScheduleSpec, digest: str = "") -> ScheduleInfo | None:
        space = self._engine.runtime.space
        at = (await space.read(space.key("schedule", schedule.id))).at
        state = new_state(spec, at, paused=schedule.paused)
        stored = with_timer(Stored(spec, state, at, declared=digest), schedule.id)
        return info_of(schedule.id, stored) if await commit(space, creating(space, schedule.id, stored)) else None

    def _spec(self, schedule: Schedule) -> ScheduleSpec:
        workflow = schedule.workflow
        if isinstance(workflow, Bound):
            bound: Bound[Any] = workflow  # pyright: ignore[reportUnknownVariableType] -- of anything
            packed, _ = pack_arguments(bound, bound.workflow, schedule.args, schedule.kwargs, {}, {})
            return schedule.spec(bound.workflow.name, Raw(packed), bound.workflow.version)
        known = self._engine.runtime.workflows.values()
        if isinstance(workflow, str):
            found = next((each for each in known if each.name == workflow), None)
            if found is None:
                raise UnknownWorkflowError(workflow, tuple(sorted({each.name for each in known})))
            return schedule.spec(workflow, Raw(found.signature.pack(schedule.args, schedule.kwargs)))
        if not isinstance(workflow, Workflow):
            problem = "this is no workflow; declare it with @sf.workflow, or give the name of one"
            raise DeclarationError("the workflow of a schedule", problem, f"a {type(workflow).__name__}")
        one = cast("Workflow[..., Any]", workflow)
        packed = one.signature.pack(schedule.args, schedule.kwargs)
        return schedule.spec(one.name, Raw(packed), one.version)

    # --- looking -------------------------------------------------------------------------------------------------

    async def get(self, schedule_id: str) -> ScheduleInfo:
        """Return how a schedule is.

        Raises:
            ScheduleNotFoundError: There is none with that id.
        """
        seen = await self._found(schedule_id)
        return info_of(schedule_id, seen.stored, await queued(self._engine.runtime.space, schedule_id))

    async def list(self) -> tuple[ScheduleInfo, ...]:
        """Return all schedules, in the order of their ids; ``queued`` is left out."""
        found = await find_all(self._engine.runtime.space)
        return tuple(info_of(schedule_id, stored) for schedule_id, stored, _ in found if not stored.is_deleted)

    async def next_ticks(self, schedule_id: str, count: int = 10) -> tuple[Instant, ...]:
        """Return the next moments at which a schedule fires, without jitter; of a paused one, if it were resumed now.

        Args:
            schedule_id: The schedule.
            count: How many.
        """
        if type(count) is not int or not 1 <= count <= MOST_MADE_UP:
            problem = f"count is {count!r:.100}; it must be a whole number from 1 to {MOST_MADE_UP:,}"
            raise DeclarationError("next_ticks", problem)
        seen = await self._found(schedule_id)
        return tuple(islice(_from(seen, Instant(seen.at + 1)), count))

    async def ticks(self, schedule_id: str, start: datetime, end: datetime) -> tuple[Tick, ...]:
        """Return the ticks from ``start`` to before ``end``, and which of them have had their run.

        These are the ticks that :meth:`backfill` makes up for.

        Args:
            schedule_id: The schedule.
            start: The first moment, with a time zone.
            end: The moment after the last, at most now.
        """
        space = self._engine.runtime.space
        seen = await self._found(schedule_id)
        runs = [(at, run_id_of(schedule_id, at)) for at in _ticks(seen, _instant("start", start), _instant("end", end))]
        page, found = space.at_most(100), list[Tick]()
        for first in range(0, len(runs), page):
            keys = {run_id: space.key("life", run_id) for _, run_id in runs[first : first + page]}
            lives = await space.read(*keys.values())
            found += [Tick(at, run, bool(lives.version(keys[run]))) for at, run in runs[first : first + page]]
        return tuple(found)

    # --- changing ------------------------------------------------------------------------------------------------

    async def pause(self, schedule_id: str, note: str = "") -> ScheduleInfo:
        """Let a schedule fire no longer, until it is resumed. Runs that wait for their turn are cancelled.

        A run that has begun goes on. ``note`` says why, and is shown with the schedule.
        """
        async with self._engine.acts("schedule.pause", schedule_id, note):
            info = await self._change(schedule_id, partial(_paused, note))
        self._engine.runtime.emit(SchedulePaused(at=self._engine.runtime.clock.wall(), schedule=schedule_id, note=note))
        return info

    async def resume(self, schedule_id: str) -> ScheduleInfo:
        """Let a paused schedule fire again, from its next tick on. Ticks in the pause are not made up for."""
        async with self._engine.acts("schedule.resume", schedule_id):
            return await self._change(schedule_id, _resumed)

    async def delete(self, schedule_id: str) -> None:
        """Remove a schedule. Runs that wait for their turn are cancelled; one that has begun goes on."""
        async with self._engine.acts("schedule.delete", schedule_id):
            await self._change(schedule_id, lambda old, at: structs.replace(_paused("", old, at), is_deleted=True))

    async def _change(self, schedule_id: str, how: Callable[[Stored, Instant], Stored]) -> ScheduleInfo:
        runtime = self._engine.runtime
        for _ in range(TRIES):
            seen = await self._found(schedule_id)
            after = how(seen.stored, seen.at)
            if not after.is_emptying:
                after = with_timer(after, schedule_id)
            if after == seen.stored:
                return info_of(schedule_id, after)
            if await commit(runtime.space, changing(runtime.space, seen, after)):
                if after.is_emptying:
                    await self._find(schedule_id)
                return info_of(schedule_id, after)
        raise _busy(schedule_id)

    async def _found(self, schedule_id: str) -> ScheduleSnapshot:
        seen = await self._find(schedule_id)
        if seen is None:
            raise ScheduleNotFoundError(schedule_id)
        return seen

    async def _find(self, schedule_id: str) -> ScheduleSnapshot | None:
        """Read a schedule, and first finish what was begun: the process that paused or deleted it may have died."""
        runtime = self._engine.runtime
        for _ in range(TRIES):
            seen = await find(runtime.space, schedule_id)
            if seen is None or not seen.stored.is_emptying:
                return seen
            await empty(runtime, seen)
        raise _busy(schedule_id)

    # --- starting ------------------------------------------------------------------------------------------------

    async def trigger(self, schedule_id: str, *, overlap: Overlap | None = None) -> Run[Any]:
        """Start a run now, whatever the time is, and also if the schedule is paused. It counts as one of its runs.

        Args:
            schedule_id: The schedule.
            overlap: What to do while a run is unfinished, if not what the schedule says.

        Raises:
            WorkflowConcurrencyLimitExceededError: A run is unfinished, and the schedule says ``"skip"``; or a limit of
                the workflow is in the way.
        """
        run_id = f"{schedule_id}@now-{new_id().replace('-', '')}"
        async with self._engine.acts("schedule.trigger", schedule_id, run=run_id):
            return await self._start(await self._found(schedule_id), run_id, None, overlap)

    async def backfill(
        self, schedule_id: str, start: datetime, end: datetime, *, overlap: Overlap = "queue"
    ) -> tuple[Run[Any], ...]:
        """Start the runs of the ticks from ``start`` to before ``end``, the oldest first, as if they were due now.

        A tick that has had its run does not get another one, so a call that failed can be made again.

        Args:
            schedule_id: The schedule.
            start: The first moment, with a time zone.
            end: The moment after the last, at most now.
            overlap: What to do while a run is unfinished; by default they wait for each other.

        Returns:
            The runs that were started, without those that were there.
        """
        first, last = _instant("start", start), _instant("end", end)
        started: list[Run[Any]] = []
        async with self._engine.acts("schedule.backfill", schedule_id, start=start, end=end) as told:
            seen = await self._found(schedule_id)
            for nominal_at in list(_ticks(seen, first, last)):
                try:
                    run = await self._start(seen, run_id_of(schedule_id, nominal_at), nominal_at, overlap)
                except WorkflowAlreadyExistsError:
                    continue  # with what the schedule said then
                if run.is_new:
                    started.append(run)
            told.details["runs"] = len(started)
        return tuple(started)

    async def _start(
        self, seen: ScheduleSnapshot, run_id: str, nominal_at: Instant | None, overlap: Overlap | None
    ) -> Run[Any]:
        runtime, spec = self._engine.runtime, seen.stored.spec
        chosen = spec.overlap if overlap is None else overlap
        if chosen not in OVERLAPS:
            raise DeclarationError(
                "the overlap of a schedule", f"it must be one of {', '.join(OVERLAPS)}", repr(chosen)[:60]
            )
        code = workflow_of(runtime, spec)
        workflow: Startable
        if code is not None:
            workflow = code
        else:  # as workers have written it down, in the version that the schedule names
            declared = await find_declared(runtime.space, spec.workflow, {name for name, _ in runtime.workflows})
            workflow = as_remote(declared if spec.version is None else structs.replace(declared, version=spec.version))
        started = await start_run(runtime, seen.id, spec, workflow, run_id, nominal_at=nominal_at, overlap=chosen)
        return Run(self._engine, started.run_id, code, is_new=started.is_new)


# --- what a change comes to -----------------------------------------------------------------------------------------


def _with_spec(spec: ScheduleSpec, old: Stored, at: Instant) -> Stored:
    state = old.state if spec.has_times_of(old.spec) else change(spec, old.state, at)
    return structs.replace(old, spec=spec, state=state)


def _declared(spec: ScheduleSpec, digest: str, old: Stored, at: Instant) -> Stored:
    return old if old.declared == digest else structs.replace(_with_spec(spec, old, at), declared=digest)


def _paused(note: str, old: Stored, at: Instant) -> Stored:
    """Return a schedule that is paused, and to be looked at now: runs that wait are to be discarded."""
    return structs.replace(old, state=pause(old.state), note=note, lacks="", is_emptying=True, wake_at=at)


def _resumed(old: Stored, at: Instant) -> Stored:
    if not old.state.paused:
        return old
    return structs.replace(old, state=resume(old.spec, old.state, at), note="", lacks="")


def _ticks(seen: ScheduleSnapshot, start: Instant, end: Instant) -> Iterator[Instant]:
    if end > seen.at:
        raise DeclarationError(
            "the end of a schedule", "only past ticks can be made up for", "a moment that is still to come"
        )
    for count, tick in enumerate(takewhile(lambda each: each < end, _from(seen, start))):
        if count == MOST_MADE_UP:
            problem = f"there are more than {MOST_MADE_UP:,} ticks in it; make up for them part by part"
            raise DeclarationError("the end of a schedule", problem, "so long a time")
        yield tick


def _from(seen: ScheduleSnapshot, start: Instant) -> Iterator[Instant]:
    spec, anchor = seen.stored.spec, seen.stored.state.anchor
    at = Instant(start - 1)
    while True:
        at = first_after(spec, anchor, at)
        yield at


def _instant(what: str, moment: datetime) -> Instant:
    if not isinstance(moment, datetime) or moment.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = "it must be a datetime with a time zone, like datetime(2024, 3, 31, tzinfo=UTC)"
        raise DeclarationError(f"the {what} of a schedule", problem, repr(moment)[:60])
    return Instant((moment - _EPOCH) // timedelta(microseconds=1))


def _busy(schedule_id: str) -> StoreBusyError:
    return StoreBusyError(f"the schedule {schedule_id}", f"others changed it {TRIES} times meanwhile")


def known_schedules(schedules: Iterable[Schedule], workflows: Mapping[tuple[str, str], object]) -> tuple[Schedule, ...]:
    """Return schedules, all of workflows that an engine has, by name and version; refuse others."""
    declared, names = tuple(schedules), {name for name, _ in workflows}
    for each in declared:
        if (name := name_of(each.workflow)) not in names:
            raise UnknownWorkflowError(name, tuple(sorted(names)))
    return declared
