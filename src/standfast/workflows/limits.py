"""Limits of unfinished runs: the lines that a run stands in, its state while it waits, and what an operator sets."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from msgspec import Struct, structs

from standfast.clock import MICROSECONDS, Instant, later
from standfast.durations import seconds
from standfast.errors import ArgumentTypeError, DeclarationError, InvalidArgumentError, LimitKeyError
from standfast.exits import FAILURES, failure_of
from standfast.locks.entry import (
    LIMIT,
    Answer,
    Entry,
    ExtraChanges,
    Line,
    LineEntries,
    LockSpec,
    OfRun,
    Rules,
    Waiting,
)
from standfast.locks.survey import read_lines
from standfast.policies import MOST_PERMITS
from standfast.stores.protocol import Delete, Put
from standfast.workflows.catalog import RemoteWorkflow, find_declared, list_declared
from standfast.workflows.definition import StartLimit
from standfast.workflows.records import DUES, HEADERS, Due, RunKeys, Standing, Status, state_in, timer_key

if TYPE_CHECKING:
    from datetime import datetime

    from standfast.durations import Duration
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot
    from standfast.workflows.catalog import Startable
    from standfast.workflows.definition import Workflow
    from standfast.workflows.records import Header, RunState
    from standfast.workflows.runtime import Runtime


# --- in which lines a run has to stand -----------------------------------------------------------------------------


def address_of_limit(workflow: str, partition: str | None) -> tuple[str, ...]:
    """Return where the line of a limit lies: of one partition, or of the whole workflow.

    Its kind is the first part of its address as well: those of locks begin with a number.
    """
    return (LIMIT, workflow, "type") if partition is None else (LIMIT, workflow, "key", partition)


def standings_of(workflow: Startable, packed: bytes) -> tuple[Standing, ...]:
    """Return the lines that a run with this input has to stand in; those of a key come first.

    Raises:
        LimitKeyError: The function that returns the key raised; that is the cause.
        ArgumentTypeError: It returned something else than text.
    """
    own = () if workflow.standings is None else workflow.standings(packed)
    if not workflow.limits:
        return own
    limits = [standing_in(workflow.name, limit, _partition(workflow, limit, packed)) for limit in workflow.limits]
    return (*own, *limits)


def standing_in(workflow: str, limit: StartLimit, partition: str | None) -> Standing:
    """Return the line of a limit, or of one of its partitions."""
    return Standing(
        address_of_limit(workflow, partition),
        LIMIT,
        limit.max,
        limit.on_limit,
        workflow if partition is None else partition,
        limit.max_queued,
        limit.ttl,
    )


def _partition(workflow: Startable, limit: StartLimit, packed: bytes) -> str | None:
    if limit.key is None or isinstance(workflow, RemoteWorkflow):  # which has no limits with keys
        return None
    bound = workflow.signature.bind(packed)
    try:
        partition = limit.key(*bound.args, **bound.kwargs)
    except FAILURES as problem:
        raise LimitKeyError(workflow.name, f"it raised {type(problem).__name__}: {problem}") from failure_of(problem)
    if not isinstance(partition, str):
        raise ArgumentTypeError(f"text from the key function of a limit of {workflow.name!r}", type(partition).__name__)
    return partition


def spec_of(standing: Standing) -> LockSpec:
    """Return what a line is, as far as the run's own code says."""
    return LockSpec(standing.kind, Rules(standing.permits))


def entry_id_of(run_id: str, standing: Standing) -> str:
    """Return under which id a run stands in a line."""
    return standing.entry or run_id


def entry_of(run_id: str, standing: Standing) -> Entry:
    """Return a run's entry: it is there until the run ends, however long that takes."""
    name = entry_id_of(run_id, standing)
    return Entry(name, name, OfRun(name), Instant(0), note=standing.note)


# --- limits at run time: what an operator sets, and who stands where -----------------------------------------------


class LimitInfo(Struct, frozen=True):
    """A limit of unfinished runs, and how it is used. Get them from ``await engine.limits()``.

    Attributes:
        workflow: Whose.
        key: The key that it is for; None: all runs of the workflow together, or a limit of each key of which none is in
            use.
        max: How many may be unfinished at a time.
        declared: How many the code says; None if no worker has told.
        is_set: Whether an operator has set it, with ``set_limit``.
        in_use: How many runs have a place.
        waiting: How many wait for one at the most.
        waited: For how many seconds the first in line has waited; None if none waits.
        has_key: Whether it is a limit of each key.
        until: When what an operator has set ends by itself, by the store's time; None: when it is cleared.
        then: How many may be unfinished from then on.
    """

    workflow: str
    key: str | None
    max: int | None
    declared: int | None
    is_set: bool = False
    in_use: int = 0
    waiting: int = 0
    waited: float | None = None
    has_key: bool = False
    until: Instant | None = None
    then: int | None = None


class LimitPage(Struct, frozen=True):
    """Limits in the order of their workflows. ``more``: there are keys that were not looked at."""

    limits: tuple[LimitInfo, ...]
    more: bool = False


async def list_limits(scope: Scope, workflow: str | None, most: int) -> LimitPage:
    """Read the limits that are in use, set by an operator, or written down by workers."""
    if type(most) is not int or most < 1:
        raise DeclarationError("limits", f"limit is {most!r:.100}; it must be a whole number, at least 1")
    page = await read_lines(scope, LIMIT, *(() if workflow is None else (workflow,)), most=most)
    known = {
        (each.name, limit.has_key): limit.max
        for each in await list_declared(scope)
        for limit in each.limits
        if workflow in (None, each.name)
    }
    found: list[LimitInfo] = []
    for line in page.lines:
        _, name, which, *partition = line.address
        says = known.pop((name, False), None) if which == "type" else known.get((name, True))
        key = partition[0] if which == "key" else None
        uses = (line.holders, line.waiting, line.waited, which == "key")
        ends = (line.reverts_at, line.reverts_to)
        found.append(LimitInfo(name, key, line.permits, says, line.is_pinned, *uses, *ends))
    with_keys = {each.workflow for each in found if each.has_key}
    found += [
        LimitInfo(name, None, says, says, has_key=has_key)
        for (name, has_key), says in known.items()
        if not has_key or name not in with_keys
    ]
    return LimitPage(tuple(sorted(found, key=lambda each: (each.workflow, each.key or ""))), page.more)


def limit_of(workflow: Workflow[..., Any], key: str | None) -> StartLimit:
    """Return the limit of a workflow: that of its keys, or that of all its runs together."""
    found = next((limit for limit in workflow.limits if (limit.key is None) == (key is None)), None)
    return found if found is not None else _no_limit(workflow.name, key)


def _no_limit(workflow: str, key: str | None) -> NoReturn:
    which = "without a key" if key is None else "with a key"
    raise DeclarationError(workflow, f"it has no limit {which}; declare one with concurrency=sf.Limit(...)")


async def set_limit(
    runtime: Runtime,
    workflow: Workflow[..., Any] | str,
    permits: int,
    key: str | None,
    until: Instant | None,
) -> None:
    """Let a line have ``permits`` permits, whatever code says, until an instant or :func:`clear_limit`.

    The commit that sets it puts a timer as well. The worker that finds the timer due takes a step of the line, so
    waiting runs are admitted then though nothing else happens in the line (:func:`end_override`).
    """
    if type(permits) is not int or not 1 <= permits <= MOST_PERMITS:
        raise DeclarationError("max", f"it is {permits!r:.40}; it must be a whole number from 1 to {MOST_PERMITS:,}")
    standing = await _standing_of(runtime, workflow, key)
    extra = None if until is None else _timer(runtime.space, standing.address, until)
    lines, spec = LineEntries(runtime.lines), spec_of(standing)
    await lines.resize(standing.address, spec, permits, pinned=True, until=until, extra_changes=extra)


async def clear_limit(runtime: Runtime, workflow: Workflow[..., Any] | str, key: str | None) -> None:
    """Let a line have as many permits as code says."""
    standing = await _standing_of(runtime, workflow, key)
    await LineEntries(runtime.lines).resize(standing.address, spec_of(standing), standing.permits, pinned=False)


async def _standing_of(runtime: Runtime, workflow: Workflow[..., Any] | str, key: str | None) -> Standing:
    """Return the line of a limit, as the code of the workflow says it, or as workers have written it down."""
    code = workflow
    if isinstance(workflow, str):
        code = next((each for each in runtime.workflows.values() if each.name == workflow), workflow)
    if not isinstance(code, str):
        return standing_in(code.name, limit_of(code, key), key)
    for each in (await find_declared(runtime.space, code)).limits:
        if each.has_key == (key is not None):
            limit = StartLimit(each.max, on_limit=each.on_limit, max_queued=each.max_queued, ttl=each.ttl)
            return standing_in(code, limit, key)
    _no_limit(code, key)


OVERRIDE: Final = "@@"
"""What the names of limits begin with in the timer index; those of schedules have one such sign, and runs none."""


def instant_of_end(now: Instant, until: datetime | None, lasts: Duration | None) -> Instant | None:
    """Return when an override ends that is given by a moment or by how long it lasts; None if neither is given.

    Raises:
        InvalidArgumentError: Both are given, or the moment has no time zone or has passed.
    """
    if lasts is not None:
        if until is not None:
            raise InvalidArgumentError("until", "give until= or lasts=, not both", f"{until!s:.40}")
        return later(now, seconds(lasts, what="lasts", minimum=0.001))
    if until is None:
        return None
    if until.tzinfo is None:
        raise InvalidArgumentError("until", "it needs a time zone: datetime.now(UTC) + timedelta(hours=2)", str(until))
    end = Instant(round(until.timestamp() * MICROSECONDS))
    if end <= now:
        raise InvalidArgumentError("until", "it has passed; clear the limit to end an override now", str(until))
    return end


def _timer(scope: Scope, address: tuple[str, ...], until: Instant) -> ExtraChanges[Answer]:
    """Return what puts a timer for the end of an override into the same commit."""
    name = OVERRIDE + sha256("\0".join(address).encode()).hexdigest()[:32]  # an address may be as long as a key
    key = timer_key(scope, until, name)

    def decide(_answer: Answer, seen: Snapshot) -> tuple[Change, ...]:
        return (Put(key, DUES.encode(Due(look_at=address)), seen.version(key)),)

    return ExtraChanges((key,), decide)


async def end_override(runtime: Runtime, timer: Record) -> None:
    """Take a step of the line whose override ends now, and remove the timer in the same commit.

    The step judges by the store's time whether it has ended: a timer of an override that was prolonged or cleared
    changes nothing.
    """
    address = DUES.decode(timer.value).look_at

    def decide(_answer: Answer, seen: Snapshot) -> tuple[Change, ...]:
        found = seen.get(timer.key)
        return () if found is None else (Delete(timer.key, found.version),)

    spec, extra = LockSpec(LIMIT, Rules(1)), ExtraChanges[Answer]((timer.key,), decide)
    await LineEntries(runtime.lines).advance(address, spec, extra_changes=extra)


async def place_of(runtime: Runtime, run_id: str) -> int | None:
    """Count the runs that have their turn before one that waits in a line; None: it does not wait for its turn."""
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.state, keys.header)
    state, header = state_in(seen, keys), seen.get(keys.header)
    lines = () if header is None else HEADERS.decode(header.value).lines
    if state.has_ended or state.admitted >= len(lines):
        return None
    standing = lines[state.admitted]
    entry_id = entry_id_of(run_id, standing)
    found = await LineEntries(runtime.lines).find(standing.address, entry_id, ticket=state.ticket)
    return found.place if isinstance(found, Waiting) else None


# --- runs that wait for their turn in a line: what is written of them, and when they have waited enough ------------


def ttl_of(header: Header) -> float | None:
    """Return how many seconds a run waits for its turn in all of its lines together; None: as long as it takes."""
    return min((each.ttl for each in header.lines if each.ttl is not None), default=None)


def waits_until(header: Header, since: Instant) -> Instant | None:
    """Return until when a run waits for its turn that began to; None: for as long as it takes."""
    ttl = ttl_of(header)
    ends = [header.deadline, None if ttl is None else later(since, ttl)]
    return min((end for end in ends if end is not None), default=None)


def waiting_state(state: RunState, place: InLine, at: Instant, until: Instant | None) -> RunState:
    """Return the state of a run that waits in a line from now on."""
    return structs.replace(
        state,
        changed_at=at,
        until=until,
        waits_for=f"its turn among the runs of {place.standing.label!r:.100}",
        admitted=place.admitted,
        ticket=place.waiting.ticket,
        collects=False,
    )


def admitted_state(state: RunState, lines: int) -> RunState:
    """Return the state of a run that holds a place in each of its lines."""
    return structs.replace(state, admitted=lines, ticket=None)


class Ending(Struct, frozen=True):
    """How a run ends that never began, and why. ``only_waiting``: unless it has its turn by now."""

    status: Status
    reason: str
    only_waiting: bool


def why_over(header: Header, state: RunState, now: Instant) -> Ending | None:
    """Tell why a run that waits in a line is to wait no longer; None: it is."""
    if state.cancel is not None:
        return Ending("cancelled", state.cancel, only_waiting=False)
    if state.until is None or state.until > now or state.collects:
        return None
    if header.deadline is not None and header.deadline <= now:
        return Ending("timed_out", "its time was over before its turn came", only_waiting=True)
    return Ending("cancelled", _late_reason(header, header.lines[state.admitted]), only_waiting=True)


def missed(header: Header, state: RunState) -> Standing | None:
    """Return the line in which the turn of a run that has ended did not come in time; None: it has ended otherwise."""
    if state.claims or state.cancel is None:
        return None
    return next((each for each in header.lines if state.cancel == _late_reason(header, each)), None)


def _late_reason(header: Header, line: Standing) -> str:
    """Return why a run is cancelled whose turn in a line does not come in time."""
    return f"its turn among the runs of {line.label!r:.100} did not come within {ttl_of(header) or 0:g} s"


class Admitted(Struct, frozen=True):
    """It holds a place in each of its lines."""


class InLine(Struct, frozen=True):
    """It waits in a line, and holds a place in each one before that."""

    standing: Standing
    admitted: int
    waiting: Waiting


class Full(Struct, frozen=True):
    """A line is full, and it would not wait. It stands nowhere."""

    standing: Standing
    line: Line


Place: TypeAlias = Admitted | InLine | Full
