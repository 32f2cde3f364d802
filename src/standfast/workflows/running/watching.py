"""A copy of a run to look at: its history is replayed, and nothing is done or recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import RunNotFoundError, UnknownWorkflowError
from standfast.workflows.context.context import Context
from standfast.workflows.running.activation import Activation
from standfast.workflows.storing.records import HEADERS, LIVES, RunKeys
from standfast.workflows.working.claiming import marks_of

if TYPE_CHECKING:
    from standfast.workflows.running.host import Host


async def copy_of(host: Host, run_id: str) -> Activation:
    """Replay a run's history as far as it goes; raise if its code does not fit it."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.header, keys.life)
    header, life = seen.get(keys.header), seen.get(keys.life)
    if header is None or life is None:
        raise RunNotFoundError(run_id)
    lived = LIVES.decode(life.value)
    workflow = host.workflows.get((lived.workflow, lived.version))
    if workflow is None:
        raise UnknownWorkflowError(lived.workflow, tuple(sorted({name for name, _ in host.workflows})))
    marks = await marks_of(host.space, keys)
    copy = Activation(host, keys, workflow, HEADERS.decode(header.value), lived, None, marks)
    copy.context = Context(copy)
    await copy.run_code()
    if copy.mismatch is not None:
        raise copy.mismatch
    return copy
