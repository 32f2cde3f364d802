"""Limits at run time: what an operator sets, and who stands where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from standfast.errors import InvalidWorkflowError
from standfast.locks.algebra.line import MOST_HOLDERS, Waiting
from standfast.locks.driving.requests import Resize
from standfast.locks.driving.run_entries import RunEntries
from standfast.workflows.limiting.standing import entry_id_of, site_of, standing_in
from standfast.workflows.starting.sending import life_in
from standfast.workflows.storing.records import HEADERS, RunKeys

if TYPE_CHECKING:
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.declaring.limits import Limit
    from standfast.workflows.running.host import Host


def limit_of(workflow: Workflow[..., Any], key: str | None) -> Limit:
    """Return the limit of a workflow: that of its keys, or that of all its runs together."""
    found = next((limit for limit in workflow.limits if (limit.key is None) == (key is None)), None)
    if found is None:
        which = "without a key" if key is None else "with a key"
        raise InvalidWorkflowError(
            workflow.name, f"it has no limit {which}; declare one with concurrency=sf.Limit(...)"
        )
    return found


async def set_limit(host: Host, workflow: Workflow[..., Any], permits: int, key: str | None) -> None:
    """Let a line have so many permits, whatever code says, until :func:`clear_limit`."""
    if type(permits) is not int or not 1 <= permits <= MOST_HOLDERS:
        raise InvalidWorkflowError("max", f"it is {permits!r:.40}; it must be a whole number from 1 to {MOST_HOLDERS}")
    await _resize(host, workflow, key, Resize(permits, pinned=True))


async def clear_limit(host: Host, workflow: Workflow[..., Any], key: str | None) -> None:
    """Let a line have as many permits as code says."""
    await _resize(host, workflow, key, Resize(limit_of(workflow, key).max, pinned=False))


async def _resize(host: Host, workflow: Workflow[..., Any], key: str | None, resize: Resize) -> None:
    standing = standing_in(workflow.name, limit_of(workflow, key), key)
    await host.lines.line(standing.address).driver.do(resize, site_of(standing))


async def place_of(host: Host, run_id: str) -> int | None:
    """Count the runs that have their turn before one that waits in a line; None: it does not wait for its turn."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.life, keys.header)
    life, header = life_in(seen, keys), seen.get(keys.header)
    lines = () if header is None else HEADERS.decode(header.value).lines
    if life.has_ended or life.admitted >= len(lines):
        return None
    standing = lines[life.admitted]
    entry_id = entry_id_of(run_id, standing)
    found = await RunEntries(host.lines).look(standing.address, entry_id, ticket=life.ticket)
    return found.place if isinstance(found, Waiting) else None
