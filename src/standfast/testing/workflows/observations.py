"""What can be seen of a run when it is over, and how two runs of the same workflow differ."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from standfast.errors import StandfastError
from standfast.workflows.records import HEADERS, RunKeys, events_of
from standfast.workflows.replay import branch_of

if TYPE_CHECKING:
    from standfast.scope import Scope
    from standfast.testing.workflows.environment import WorkflowEnvironment
    from standfast.workflows.records import HistoryEvent
    from standfast.workflows.run import Run

Attempts = Counter[tuple[str, str, int]]
"""How often each attempt of each step of each run was executed."""


class Observation(Struct, frozen=True):
    """A run that is over, with everything that it started.

    Attributes:
        outcome: What it returned or raised, in a form that compares.
        histories: The kinds and ids of its events, and of its children's, branch by branch.
        attempts: How often each attempt of each step was executed.
        grants: How often a grant of a lock was written.
        commits: How many commits the process made that drove it first.
        kinds: The kinds of its events and of its children's, in their order.
        left: What is still held or owned in the store.
    """

    outcome: str
    histories: dict[str, dict[str, list[str]]]
    attempts: Attempts
    grants: int
    commits: int
    kinds: tuple[str, ...]
    left: list[str]


async def outcome_of(env: WorkflowEnvironment, run: Run[Any]) -> str:
    """Let a run come to its end; return what it returned or raised."""
    try:
        return f"returned {await env.result(run)!r}"
    except StandfastError as problem:
        cause = problem.__cause__
        return f"raised {type(problem).__name__}: {problem}" + (f" because of {cause!r}" if cause else "")


async def left_in(scope: Scope) -> list[str]:
    """Return what is still held or owned: nothing, once every run has ended."""
    found: list[str] = []
    for kind in ("own", "grant"):
        page = await scope.scan(*scope.key(kind).within(), limit=100)
        found += map(str, page.records)
    return found


async def all_events(scope: Scope) -> dict[str, list[HistoryEvent]]:
    """Return the events of every run in a store."""
    page = await scope.scan(*scope.key("run").within(), limit=1_000)
    names = [key.parts[-1] for key, record in page.records.items() if not HEADERS.decode(record.value).is_gone]
    return {name: await events_of(scope, RunKeys(scope, name)) for name in names}


def by_branch(events: list[HistoryEvent]) -> dict[str, list[str]]:
    """Return kinds and ids of events; the order among branches that run side by side does not count."""
    found: dict[str, list[str]] = {}
    for event in events:
        found.setdefault(branch_of(event.id), []).append(f"{event.kind} {event.id}")
    return found


def recorded_attempts(histories: dict[str, list[HistoryEvent]]) -> set[tuple[str, str, int]]:
    """Return the attempts of steps whose outcome is recorded."""
    found: set[tuple[str, str, int]] = set()
    for run_id, events in histories.items():
        tried = Counter[str]()
        for event in events:
            if event.kind in ("tried", "step"):
                tried[event.id] += 1
                found.add((run_id, event.id, tried[event.id]))
    return found


def difference(expected: Observation, seen: Observation) -> str:
    """Say how a run ended differently, or recorded something else; empty if neither."""
    if seen.outcome != expected.outcome:
        return f"it {seen.outcome}; undisturbed it {expected.outcome}"
    for run_id in expected.histories.keys() | seen.histories.keys():
        ours, theirs = expected.histories.get(run_id), seen.histories.get(run_id)
        if ours != theirs:
            return f"the history of {run_id} is {theirs}; undisturbed it is {ours}"
    return f"this was left behind: {seen.left}" if seen.left != expected.left else ""
