"""Ticks of schedules as requests: each is one durable request, taken on in the commit that moves its schedule on.

The request's id is made of the schedule's id and the tick's nominal time, so no tick is taken on twice, whichever
process fires the schedule. It stands in the line of its schedule, which is how ticks overlap, and in that of its key,
as the policy of its action says.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from standfast.errors import WorkflowConcurrencyLimitExceededError
from standfast.flows.arbiter.protocol import JoinsError
from standfast.flows.records import RequestKeys, RunInput, tags_of
from standfast.flows.request import address_of
from standfast.flows.task import task_of
from standfast.workflows.admission import start_in_lines
from standfast.workflows.limits import standings_of
from standfast.workflows.records import Started
from standfast.workflows.start import start

if TYPE_CHECKING:
    from standfast.flows.flow import Action
    from standfast.flows.server import RequestServer
    from standfast.flows.task import Task
    from standfast.workflows.records import Standing, Start
    from standfast.workflows.runtime import Runtime


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _OverlapError(Exception):
    """The line of the schedule is taken, not that of the request's key."""

    def __init__(self, full: WorkflowConcurrencyLimitExceededError) -> None:
        super().__init__(full)
        self.full = full


async def take_on(
    server: RequestServer, action: Action[..., Any], asked: Start, lines: tuple[Standing, ...]
) -> Started:
    """Take on the request of a tick: its record, its run and its places are one commit with what the tick changes.

    Args:
        server: Where it is taken on.
        action: What to run.
        asked: The start of its run, as its schedule says; the id of the run is that of the request.
        lines: The line of the schedule, unless ticks may overlap.

    Raises:
        WorkflowConcurrencyLimitExceededError: A request of the schedule is unfinished, and the tick is not to wait.
        RunNotFoundError: Another process has taken the tick on.
        FlowError: The policy of the action refuses it, or its inputs do not fit any more.
    """
    task = _task(action, asked)
    if task.arrival.session and server.owners.has_to_claim(task.arrival):
        await server.owners.claim_for(task.arrival)
    keys = RequestKeys(server.space, task.arrival.tenant, task.id)
    at = server.now()
    first = keys.first(task.record(at, "waiting", durable=True, verdict="started"), at)
    packed = asked.workflow.signature.pack((task.stored_call(),), {})
    extra_changes = (*asked.extra_changes, *first)
    asked = structs.replace(
        asked, packed=packed, restored=None, tags=tags_of(task.arrival.tenant), extra_changes=extra_changes
    )

    async def begin() -> Started:
        try:
            return await _begin(server.engine.runtime, asked, lines)
        except WorkflowConcurrencyLimitExceededError as full:
            raise server.limits.refusal(task, full) or full from None

    try:
        return await (begin() if task.address is None else server.arbiter.start(task.ask(), begin))
    except _OverlapError as overlap:
        raise overlap.full from None
    except JoinsError as joins:
        return Started(joins.who.id, is_new=False)


async def _begin(runtime: Runtime, asked: Start, lines: tuple[Standing, ...]) -> Started:
    places = (*lines, *standings_of(asked.workflow, asked.packed))
    try:
        return await (start_in_lines(runtime, asked, places) if places else start(runtime, asked))
    except WorkflowConcurrencyLimitExceededError as full:
        if lines and full.partition_key == lines[0].label:
            raise _OverlapError(full) from full
        raise


def _task(action: Action[..., Any], asked: Start) -> Task:
    """Return the request of a tick."""
    call = msgspec.json.decode(asked.packed, type=RunInput).call
    assert call is not None  # noqa: S101 -- that is what schedules of actions are made with
    nominal_at = None
    if asked.nominal_at is not None:
        nominal_at = f"{(_EPOCH + timedelta(microseconds=asked.nominal_at)).replace(tzinfo=None).isoformat()}Z"
    tick = {"id": asked.schedule, "nominalAt": nominal_at}
    call = structs.replace(call, metadata={"schedule": tick}, idempotency_key=asked.run_id)
    task = task_of(action, call, asked.run_id)
    return structs.replace(task, address=address_of(action.policy, task.arrival, task.inputs.values))
