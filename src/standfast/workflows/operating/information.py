"""What can be known of a run from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import RunNotFoundError
from standfast.workflows.storing.failures import Failure
from standfast.workflows.storing.records import HEADERS, LIVES, Header, Life, Mark, RunKeys, Status
from standfast.workflows.storing.values import PLAIN
from standfast.workflows.working.claiming import marks_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from standfast.scope import Scope

PAGE: Final = 100


class RunInfo(Struct, frozen=True):
    """How a run is.

    Attributes:
        id: The run.
        workflow: Its workflow.
        version: The version of its workflow's code.
        status: How it is: ``pending``, ``running``, ``suspended``, ``quarantined``, ``completed``, ``failed``,
            ``cancelled``, ``timed_out``.
        started_at: When it was started, by the store's time.
        changed_at: Since when it is as it is.
        input: What it was started with, as JSON.
        owner: The presence that drives it; empty: nobody does.
        waits_for: What it waits for, in words.
        until: When it goes on at the latest.
        result: What it returned, as JSON-shaped data.
        failure: What it raised, in words.
        cancel: Why it was cancelled, or is to be.
        parent: The run that started it as a child.
        progress: What it last said about its progress.
        claims: How often it was taken up.
        deaths: How many workers died with it in a row.
        tags: The tags it was started with.
        lines: The limits and schedules that it counts for.
        root: The run at the top of its tree; empty if nobody has started it as a child.
        continues: It went on as a new run, which has the result.
        continued_from: The run that went on as this one.
        forked_from: The run that this one was restarted or forked from.
        idempotency_key: The key that it was started with.
        schedule: The schedule that started it.
        nominal_at: The moment that its schedule meant.
        deadline: When it is stopped if it has not ended.
    """

    id: str
    workflow: str
    version: str
    status: Status
    started_at: Instant
    changed_at: Instant
    input: Any = None
    owner: str = ""
    waits_for: str = ""
    until: Instant | None = None
    result: Any = None
    failure: Failure | None = None
    cancel: str | None = None
    parent: str = ""
    progress: Any = None
    claims: int = 0
    deaths: int = 0
    tags: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    root: str = ""
    continues: bool = False
    continued_from: str = ""
    forked_from: str = ""
    idempotency_key: str = ""
    schedule: str = ""
    nominal_at: Instant | None = None
    deadline: Instant | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, for good."""
        return self.status in ("completed", "failed", "cancelled", "timed_out")

    @property
    def seconds(self) -> float:
        """How long it took, or takes so far until its last change."""
        return (self.changed_at - self.started_at) / MICROSECONDS


class Page(Struct, frozen=True):
    """A page of runs, and where the next one begins; None: that was all."""

    runs: tuple[RunInfo, ...]
    next: str | None


def info_of(run_id: str, header: Header, life: Life, progress: bytes | None = None) -> RunInfo:
    """Return what two records say about a run."""
    return RunInfo(
        run_id,
        header.workflow,
        header.version,
        life.status,
        header.started_at,
        life.changed_at,
        PLAIN.unpack(header.input),
        life.owner,
        life.waits_for,
        None if life.lease_awaited else life.until,  # that is when it is looked at again
        PLAIN.unpack(life.result) if life.result else None,
        life.failure,
        life.cancel,
        header.parent,
        None if progress is None else PLAIN.unpack(progress),
        life.claims,
        life.deaths,
        header.tags,
        tuple(line.label for line in header.lines),
        header.root,
        life.continues,
        header.continued_from,
        header.forked_from,
        header.idempotency_key,
        header.schedule,
        header.nominal_at,
        header.deadline,
    )


async def read_info(scope: Scope, run_id: str) -> RunInfo:
    """Read how a run is."""
    keys = RunKeys(scope, run_id)
    seen = await scope.read(keys.header, keys.life, keys.progress)
    header, life, progress = seen.get(keys.header), seen.get(keys.life), seen.get(keys.progress)
    if header is None or life is None:
        raise RunNotFoundError(run_id)
    return info_of(
        run_id, HEADERS.decode(header.value), LIVES.decode(life.value), None if progress is None else progress.value
    )


async def list_runs(
    scope: Scope,
    *,
    workflow: str | None,
    status: Collection[str] | None,
    parent: str | None,
    tag: str | None,
    newest_first: bool,
    limit: int,
    after: str | None,
) -> Page:
    """Read a page of runs, in the order of their ids."""
    start, end = scope.key("life").within()
    if after is not None:
        own = scope.key("life", after)
        start, end = (start, own) if newest_first else (own.within()[1], end)
    found: list[RunInfo] = []
    while True:
        page = await scope.scan(start, end, limit=scope.at_most(PAGE), reverse=newest_first)
        lives = {key.parts[-1]: LIVES.decode(record.value) for key, record in page.records.items()}
        chosen = {
            run_id: life
            for run_id, life in lives.items()
            if (workflow is None or life.workflow == workflow) and (status is None or life.status in status)
        }
        headers = await scope.read(*(scope.key("run", run_id) for run_id in chosen)) if chosen else None
        for run_id, life in chosen.items():
            record = None if headers is None else headers.get(scope.key("run", run_id))
            if record is None:
                continue
            header = HEADERS.decode(record.value)
            if (parent is None or header.parent == parent) and (tag is None or tag in header.tags):
                found.append(info_of(run_id, header, life))
                if len(found) == limit:
                    return Page(tuple(found), run_id)
        if page.more is None:
            return Page(tuple(found), None)
        start, end = (start, page.more) if newest_first else (page.more, end)


class HistoryEntry(Struct, frozen=True):
    """One line of a run's history, for people."""

    number: int
    kind: str
    id: str
    at: Instant
    value: Any = None
    failure: Failure | None = None
    until: Instant | None = None


async def read_history(scope: Scope, run_id: str, *, first: int = 0) -> tuple[HistoryEntry, ...]:
    """Read everything that a run has recorded; or only what came after the first so many, when they were all."""
    marks = await marks_of(scope, RunKeys(scope, run_id), first=first)
    return tuple(_entry(number, mark) for number, mark in enumerate(marks, first))


def _entry(number: int, mark: Mark) -> HistoryEntry:
    value = PLAIN.unpack(mark.value) if mark.value else None
    return HistoryEntry(number, mark.kind, mark.id, mark.at, value, mark.failure, mark.until)
