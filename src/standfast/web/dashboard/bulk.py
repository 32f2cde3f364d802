"""Changes of many runs from the dashboard: counted and named first, confirmed by typing the number, then followed.

The work is done by the process that took the form, and told on a page of its own. It ends with that process; what was
done by then is done, and the audit says to which runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.errors import StandfastError
from standfast.flows.bulk import COUNTED, SHOWN, Bulk, Changed, cancel_many, change_all, purge_many, retry_many
from standfast.ids import new_id
from standfast.redaction import mask_text
from standfast.web.dashboard.access import PageError
from standfast.web.dashboard.run_pages import BULK, TIMES, chosen_in
from standfast.workflows.failures import log_failure
from standfast.workflows.queries import RunInfo
from standfast.workflows.run_index import RunCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response

    from standfast.space import Space
    from standfast.web.dashboard.pages import View
    from standfast.workflows.engine import Engine

MOST_AT_ONCE: Final = 3
"""How many changes of many runs a tenant may have under way."""

MOST_KEPT: Final = 50
"""How many are remembered after their end."""

MOST_TOLD: Final = 100
"""How many runs that could not be changed are told."""

_log: Final = logging.getLogger("standfast.dashboard")


class BulkCount(Struct, frozen=True):
    """Which runs a change is about to change.

    Attributes:
        bulk: What is done to them.
        filters: Which, as an engine takes it.
        given: The same as texts, with moments in place of "2 hours ago": they must not move before it is confirmed.
        count: How many they are.
        first: Some of them.
    """

    bulk: Bulk
    filters: dict[str, Any]
    given: dict[str, str]
    count: RunCount
    first: tuple[RunInfo, ...]


def bulk_named(action: str, reason: str = "") -> Bulk:
    """Return what an action does to each run."""
    if action == "runs.cancel":
        return cancel_many(reason or "cancelled in the dashboard")
    return retry_many() if action == "runs.retry" else purge_many()


async def count(view: View, action: str, query: dict[str, str], reason: str = "") -> BulkCount:
    """Count the runs that an address asks for, and that this can be done to. Nothing is changed."""
    chosen = chosen_in(query, view.now)
    bulk = bulk_named(action, reason)
    status = chosen.given.get("status")
    if not chosen.given:
        raise PageError(400, "Nothing was done", "Say which runs are meant.", "Filter the list of runs first.")
    if status is not None and status not in BULK[action]:
        words = f"Runs that are {status.replace('_', ' ')} cannot be {bulk.done}."
        raise PageError(400, "Nothing was done", words, "Choose another status in the list of runs.")
    filters: dict[str, Any] = chosen.filters | {"status": {status} if status else BULK[action]}
    given = chosen.given | {name: chosen.filters[name].isoformat() for name in TIMES if name in chosen.filters}
    number = await view.engine.count(**filters, most=COUNTED)
    return BulkCount(bulk, filters, given, number, (await view.engine.list(**filters, limit=SHOWN)).runs)


@final
class BulkJob:
    """A change of many runs that is under way, or was."""

    def __init__(self, space: Space, action: str, counted: BulkCount, user: str) -> None:
        self.id: Final = new_id()
        self.space, self.action, self.counted, self.user = space, action, counted, user
        self.changed: Final = Changed(failed={})
        self.problem = ""
        self.was_stopped = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done."""
        return self.task is None or self.task.done()

    @property
    def seen(self) -> int:
        """How many runs were tried."""
        return self.changed.done + len(self.changed.failed)

    async def work(self, engine: Engine, tell: Callable[[], None]) -> None:
        """Change all runs that are meant."""
        counted = self.counted
        try:
            await change_all(engine, counted.bulk, counted.filters, self.changed)
        except StandfastError as problem:
            self.problem = mask_text(str(problem))
        except Exception as problem:  # noqa: BLE001 -- told on its page and in the log; nothing waits for it
            self.problem = "The log of the server says what."
            log_failure(_log, "a change of many runs", problem)
        finally:
            tell()


@final
class Jobs:
    """The changes of many runs that this process does, or has done."""

    def __init__(self) -> None:
        self._known: Final[OrderedDict[str, BulkJob]] = OrderedDict()

    def start(self, view: View, engine: Engine, action: str, counted: BulkCount) -> BulkJob:
        """Begin to change runs; refuse if a tenant has too much under way."""
        space = view.engine.space
        if sum(job.space is space and not job.is_over for job in self._known.values()) >= MOST_AT_ONCE:
            words = f"{MOST_AT_ONCE} changes of many runs are under way."
            raise PageError(409, "Nothing was done", words, "Wait until one has ended, or stop one.")
        job = BulkJob(space, action, counted, view.access.principal.user or "operator")
        job.task = asyncio.get_running_loop().create_task(job.work(engine, view.dashboard.wake_all))
        self._known[job.id] = job
        for name in [name for name, each in self._known.items() if each.is_over][:-MOST_KEPT]:
            del self._known[name]
        return job

    def get(self, view: View, job_id: str) -> BulkJob:
        """Return a change of the caller's tenant."""
        job = self._known.get(job_id)
        if job is None or job.space is not view.engine.space:
            words = "This process does no such work, or has forgotten it."
            raise PageError(404, "No such work", words, "The audit says what was done, and to which runs.")
        return job

    def under_way(self, space: Space) -> list[BulkJob]:
        """Return what a tenant has under way."""
        return [job for job in self._known.values() if job.space is space and not job.is_over]

    async def aclose(self) -> None:
        """End all work."""
        tasks = [job.task for job in self._known.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def progress(view: View) -> Response:
    """Show how far a change of many runs has come."""
    job_id = view.query.get("id", "")
    if not job_id:
        return view.page("bulk.html", job=None, jobs=view.dashboard.jobs.under_way(view.engine.space), failed=())
    job = view.dashboard.jobs.get(view, job_id)
    failed = [(name, mask_text(words)) for name, words in list(job.changed.failed.items())[:MOST_TOLD]]
    return view.page("bulk.html", job=job, jobs=(), failed=failed)


def stop(view: View, job_id: str) -> BulkJob:
    """End a change of many runs, for a caller that may begin such a one."""
    job = view.dashboard.jobs.get(view, job_id)
    if not view.access.may(job.action):
        raise PageError(403, "You may not do this", "You may stop what you may begin.")
    if job.task is not None and not job.is_over:
        job.was_stopped = True
        job.task.cancel()
    return job
