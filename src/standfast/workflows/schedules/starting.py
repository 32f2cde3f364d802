"""Starting the runs of a schedule: each stands in the schedule's line, and in those of its workflow's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from standfast.workflows.limiting.entering import start_in_lines
from standfast.workflows.limiting.standing import standings_of
from standfast.workflows.schedules.records import line_of
from standfast.workflows.starting.creating import Start
from standfast.workflows.starting.starting import start
from standfast.workflows.storing.records import Standing

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.stores.protocol import Change
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.running.host import Host
    from standfast.workflows.schedules.specification import Overlap, ScheduleSpec
    from standfast.workflows.starting.creating import Started

MOST_QUEUED: Final = 1_000
"""How many runs of a schedule may wait for their turn."""

_ON_LIMIT: Final = {"skip": "reject", "queue": "queue", "cancel_running": "cancel_running"}


def label_of(schedule_id: str) -> str:
    """Return what the line of a schedule is called for people."""
    return f"schedule {schedule_id}"


def workflow_of(host: Host, spec: ScheduleSpec) -> Workflow[..., Any] | None:
    """Return the code for a schedule: in the version that it names, else the first that the engine has."""
    exact = host.workflows.get((spec.workflow, spec.version)) if spec.version is not None else None
    return exact or next((each for each in host.workflows.values() if each.name == spec.workflow), None)


def overlap_of(spec: ScheduleSpec, *, is_late: bool) -> Overlap:
    """Return what a tick does while a run of its schedule is unfinished.

    Ticks that are made up for all come at once. They run one after another: a backfill that dropped or cancelled all
    but one of them would make up for one.
    """
    return "queue" if is_late and spec.overlap != "allow" else spec.overlap


async def start_run(
    host: Host,
    schedule_id: str,
    spec: ScheduleSpec,
    workflow: Workflow[..., Any],
    run_id: str,
    *,
    nominal_at: Instant | None,
    overlap: Overlap,
    alongside: tuple[Change, ...] = (),
) -> Started:
    """Start a run of a schedule, with further changes in the same commit.

    Raises:
        RunNotFoundError: One of those changes met something else than it expected. Nothing was written.
        WorkflowConcurrencyLimitExceededError: It would have had to wait, and must not. Nothing was written.
        FlowError: It is a request, and the policy of its action refuses it. Nothing was written.
    """
    asked = Start(
        workflow=workflow,
        packed=bytes(spec.input),
        run_id=run_id,
        schedule=schedule_id,
        nominal_at=nominal_at,
        alongside=alongside,
    )
    own = () if overlap == "allow" else (standing_of(schedule_id, spec, overlap),)
    if workflow.on_tick is not None:
        return await workflow.on_tick(asked, own)
    lines = (*own, *standings_of(workflow, asked.packed))
    return await start_in_lines(host, asked, lines) if lines else await start(host, asked)


def standing_of(schedule_id: str, spec: ScheduleSpec, overlap: Overlap) -> Standing:
    """Return the place of a tick's run in the line of its schedule; what is made up for may all wait there."""
    most = max(MOST_QUEUED, spec.most_backfilled) if overlap == "queue" else None
    return Standing(line_of(schedule_id), "schedule", 1, _ON_LIMIT[overlap], label_of(schedule_id), most)
