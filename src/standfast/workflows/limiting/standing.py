"""In which lines a run has to stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import Instant
from standfast.errors import LimitKeyError, LimitKeyTypeError
from standfast.locks.algebra.entries import Entry, OfRun
from standfast.locks.algebra.line import Rules
from standfast.locks.driving.records import Site
from standfast.workflows.starting.catalog import RemoteWorkflow
from standfast.workflows.storing.records import Standing

if TYPE_CHECKING:
    from standfast.workflows.declaring.limits import Limit
    from standfast.workflows.starting.target import Startable

LIMIT: Final = "limit"
"""The kind of such a line, and the first part of its address: those of locks begin with a number."""


def address_of_limit(workflow: str, partition: str | None) -> tuple[str, ...]:
    """Return where the line of a limit lies: of one partition, or of the whole workflow."""
    return (LIMIT, workflow, "type") if partition is None else (LIMIT, workflow, "key", partition)


def standings_of(workflow: Startable, packed: bytes) -> tuple[Standing, ...]:
    """Return the lines that a run with this input has to stand in; those of a key come first.

    Raises:
        LimitKeyError: The function that returns the key raised; that is the cause.
        LimitKeyTypeError: It returned something else than text.
    """
    own = () if workflow.standings is None else workflow.standings(packed)
    if not workflow.limits:
        return own
    limits = [standing_in(workflow.name, limit, _partition(workflow, limit, packed)) for limit in workflow.limits]
    return (*own, *limits)


def standing_in(workflow: str, limit: Limit, partition: str | None) -> Standing:
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


def _partition(workflow: Startable, limit: Limit, packed: bytes) -> str | None:
    if limit.key is None or isinstance(workflow, RemoteWorkflow):  # which has no limits with keys
        return None
    bound = workflow.signature.bind(packed)
    try:
        partition = limit.key(*bound.args, **bound.kwargs)
    except Exception as problem:
        raise LimitKeyError(workflow.name, f"it raised {type(problem).__name__}: {problem}") from problem
    if not isinstance(partition, str):
        raise LimitKeyTypeError(workflow.name, f"it returned {type(partition).__name__}; it must return text")
    return partition


def site_of(standing: Standing) -> Site:
    """Return what a line is, as far as the run's own code says."""
    return Site(standing.kind, Rules(standing.permits))


def entry_id_of(run_id: str, standing: Standing) -> str:
    """Return under which id a run stands in a line."""
    return standing.entry or run_id


def entry_of(run_id: str, standing: Standing) -> Entry:
    """Return a run's entry: it is there until the run ends, however long that takes."""
    name = entry_id_of(run_id, standing)
    return Entry(name, name, OfRun(name), Instant(0), note=standing.note)
