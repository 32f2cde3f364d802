"""Changes of many runs at once, chosen by what they are: cancel, retry or purge all of them.

The command line and the dashboard both do this. Each run is changed on its own: one that cannot be changed does not
keep the others from it, and is told at the end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from msgspec import Struct

from standfast.errors import DeclarationError, RunNotFoundError, StandfastError
from standfast.flows.view import is_over, note_operator
from standfast.workflows.records import ENDED, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.workflows.engine import Engine
    from standfast.workflows.queries import RunInfo

Change: TypeAlias = "Callable[[Engine, RunInfo], Awaitable[int]]"
"""Changes one run; returns how many runs that were, with those that it has started."""

STATUSES: Final[frozenset[str]] = frozenset(get_args(Status))
_NOT_BEGUN: Final = frozenset({"pending"})
RETRIED: Final = (ENDED - {"completed"}) | {"quarantined"}
COUNTED: Final = 10_000
"""Up to how many runs are counted before it is asked."""

SHOWN: Final = 5
"""How many of them are named."""

PAGE: Final = 100
TOGETHER: Final = 20
"""How many runs are changed at a time: their commits ride together."""


class Changed(Struct):
    """What came of changing many runs: how many were, and why others were not."""

    done: int = 0
    failed: dict[str, str] = {}


class Bulk(Struct, frozen=True):
    """What is done to many runs.

    Attributes:
        verb: What, as in "cancel 12 runs".
        done: That in the past: "cancelled".
        statuses: Which runs it can be done to at all.
        change: What is done to one.
        sentence: What is told of some that it was done to, with ``{}`` for them; empty: the verb in the past, and them.
    """

    verb: str
    done: str
    statuses: frozenset[str]
    change: Change
    sentence: str = ""

    def told(self, runs: str) -> str:
        """Return what is told of some runs: "asked 12 runs to stop"."""
        return (self.sentence or f"{self.done} {{}}").format(runs)


def cancel_many(reason: str, *, force: bool = False) -> Bulk:
    """Ask runs to stop; with ``force`` they end at once, without their code."""

    async def change(engine: Engine, run: RunInfo) -> int:
        await note_operator(engine.space, run.id, run.tags)
        after = await engine.cancel(run.id, reason, force=force)
        return not (after.has_ended and after.status != "cancelled")  # it had ended by itself since it was listed

    return Bulk("cancel", "cancelled", STATUSES - ENDED, change, "ended {}" if force else "asked {} to stop")


def retry_many(*, step: str | None = None) -> Bulk:
    """Let runs go on that failed, were cancelled, have timed out, or are quarantined."""

    async def change(engine: Engine, run: RunInfo) -> int:
        if run.has_ended and await is_over(engine.space, run.id, run.tags):
            raise DeclarationError(f"retry {run.id!r}", "it is the run of a request that has ended; send it again")
        await engine.retry(run.id, step=step)
        return 1

    return Bulk("retry", "retried", RETRIED, change)


def purge_many(*, force: bool = False) -> Bulk:
    """Delete runs that have ended, with everything that they have started; with ``force`` also those that have not."""

    async def change(engine: Engine, run: RunInfo) -> int:
        try:
            return await engine.purge(run.id, force=force)
        except RunNotFoundError:  # it went with the one that has started it
            return 0

    return Bulk("purge", "purged", STATUSES if force else ENDED, change)


async def change_all(
    engine: Engine, bulk: Bulk, chosen: dict[str, Any], changed: Changed, tell: Callable[[], None] = lambda: None
) -> None:
    """Change all runs that are meant, those that have not begun before all others.

    A run that ends gives its place in a limit to the next in line. If that one is meant as well, it must not begin
    only to be stopped, with effects that cannot be undone.

    Args:
        engine: Where they are.
        bulk: What is done to them.
        chosen: Which, as :meth:`Engine.list` takes it.
        changed: What came of it; it grows while this goes on.
        tell: Called whenever some more were changed.
    """
    async for some in _runs(engine, bulk, chosen):
        for first in range(0, len(some), TOGETHER):
            await asyncio.gather(*(_change(engine, bulk, run, changed) for run in some[first : first + TOGETHER]))
            tell()


async def _change(engine: Engine, bulk: Bulk, run: RunInfo, changed: Changed) -> None:
    try:
        number = await bulk.change(engine, run)
    except StandfastError as problem:
        changed.failed[run.id] = f"{type(problem).__name__}: {problem}"
    else:
        changed.done += number  # not in one line with the wait: others add to it meanwhile


async def _runs(engine: Engine, bulk: Bulk, chosen: dict[str, Any]) -> AsyncIterator[list[RunInfo]]:
    """Yield the runs that are meant, each once, some at a time; those that have not begun come first.

    Those that are changed have another place, or none, from then on. Pages go on after the last run that was seen, so
    that those that cannot be changed do not make it go on for ever. Runs that are started meanwhile are not meant.
    """
    statuses = chosen.get("status") or bulk.statuses
    meant = frozenset({statuses} if isinstance(statuses, str) else statuses)
    others = {name: value for name, value in chosen.items() if name != "status"}
    seen: set[str] = set()
    began = engine.runtime.now()
    for some in (meant & _NOT_BEGUN, meant - _NOT_BEGUN):
        after, has_more = None, bool(some)
        while has_more:
            page = await engine.list(**others, status=some, limit=PAGE, after=after)
            runs = [run for run in page.runs if run.id not in seen and run.started_at <= began]
            seen.update(run.id for run in runs)
            yield runs
            after, has_more = page.next, page.next is not None
