"""Lines in which a run stands from its start to its end: start limits and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.keys import RecordKey
    from holdfast.stores.protocol import Change, Commit, Conflict
    from holdfast.workflows.activation import Activation
    from holdfast.workflows.definition import Workflow
    from holdfast.workflows.host import Host
    from holdfast.workflows.records import Life, Standing
    from holdfast.workflows.starting import Start, Started


def standings_of(workflow: Workflow[..., Any], packed: bytes) -> tuple[Standing, ...]:
    """Return the lines that a run with this input has to stand in; the line of its key comes first."""
    if not workflow.limits:
        return ()
    raise NotImplementedError(packed)


async def start_in_lines(host: Host, asked: Start, standings: tuple[Standing, ...]) -> Started:
    """Start a run that needs a place in lines: place and run in one commit."""
    raise NotImplementedError(host, asked, standings)


async def leave_lines(
    activation: Activation, life: Life, last: tuple[Change, ...], over: Mapping[RecordKey, bytes | None]
) -> Commit | Conflict:
    """End a run and leave its lines, so that the next one has its turn, in one commit."""
    raise NotImplementedError(activation, life, last, over)
