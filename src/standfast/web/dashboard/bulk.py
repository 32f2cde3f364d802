"""Changes of many runs from the dashboard: counted and named first, confirmed by typing the number, then followed.

The work is done by the process that took the form. A record in the store says how far it is, and a mutex that the
process holds meanwhile says that it is alive: work whose record has no end and whose mutex is free was cut off. Every
process tells that, and offers to do the rest (ADR 116).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from msgspec import Struct, structs

from standfast.clock import MICROSECONDS, Instant, later
from standfast.codec import Codec
from standfast.errors import StandfastError
from standfast.flows.bulk import Bulk, Changed, cancel_many, change_all, purge_many, retry_many
from standfast.ids import new_id
from standfast.redaction import mask_text
from standfast.stores.protocol import Conflict, Put
from standfast.web.dashboard.access import PageError
from standfast.workflows.failures import log_failure
from standfast.workflows.queries import RunInfo
from standfast.workflows.run_index import RunCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.space import Space
    from standfast.workflows.engine import Engine

MOST_AT_ONCE: Final = 3
"""How many changes of many runs a tenant may have under way."""

MOST_KEPT: Final = 50
"""How many are remembered after their end."""

MOST_TOLD: Final = 100
"""How many of the runs that could not be changed are named."""

TELL_EVERY: Final = 1.0
"""Seconds between two records of the progress."""

KEPT_FOR: Final = 7 * 86_400.0
"""Seconds for which the record of work that is over, or was cut off, is kept."""

BULK_RECORDS: Final = "bulk"
"""The kind of these records."""

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


State: TypeAlias = Literal["under way", "done", "stopped", "broke off", "cut off"]
"""How work on many runs is. It is cut off if the process that did it has ended, or was told to."""


class BulkRecord(Struct, frozen=True, omit_defaults=True):
    """What is stored of a change of many runs.

    Attributes:
        action: What is done to each.
        given: To which, as the filters of the list of runs.
        user: Who began it.
        began_at: When, by the store's time.
        counted: How many runs there were, up to a bound.
        has_more: There were more.
        done: How many were changed.
        failed: Why some were not, by their ids; the first of them.
        not_done: How many were not.
        state: How it is, as far as the process that does it has said.
        problem: What it broke off at.
        stops: It is asked to stop.
    """

    action: str
    given: dict[str, str]
    user: str
    began_at: Instant
    counted: int
    has_more: bool = False
    done: int = 0
    failed: dict[str, str] = {}
    not_done: int = 0
    state: State = "under way"
    problem: str = ""
    stops: bool = False

    @property
    def seen(self) -> int:
        """How many runs were tried."""
        return self.done + self.not_done

    @property
    def count(self) -> RunCount:
        """How many runs there were."""
        return RunCount(self.counted, self.has_more)

    @property
    def done_word(self) -> str:
        """What is done to each, in the past: "cancelled"."""
        return bulk_named(self.action).done

    @property
    def rest(self) -> dict[str, str]:
        """The filters of what is left to do: none that was started, or that has ended, since this was begun.

        So a run that was retried, and failed again, is not retried a second time.
        """
        edge = "started_before" if self.action == "runs.cancel" else "ended_before"
        began = datetime.fromtimestamp(self.began_at / MICROSECONDS, UTC).isoformat()
        if self.given.get("status") == "quarantined" or self.given.get(edge, began) < began:
            return self.given
        return self.given | {edge: began}


CODEC: Final[Codec[BulkRecord]] = Codec(BulkRecord, what="a change of many runs")


def lock_name(job_id: str) -> str:
    """Return the mutex that is held while work on many runs is under way."""
    return f"dashboard work {job_id}"


@final
class BulkJob:
    """A change of many runs that this process does, or did."""

    def __init__(self, space: Space, action: str, counted: BulkCount, record: BulkRecord) -> None:
        self.id: Final = new_id()
        self.space, self.action, self.counted = space, action, counted
        self.changed: Final = Changed(failed={})
        self.problem = ""
        self.was_stopped = False
        self.task: asyncio.Task[None] | None = None
        self._record, self._version = record, 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done."""
        return self.task is None or self.task.done()

    async def tell(self, state: State = "under way") -> None:
        """Record the progress, and learn if it is asked to stop."""
        changed, key = self.changed, self.space.key(BULK_RECORDS, self.id)
        failed = dict(list(changed.failed.items())[:MOST_TOLD])
        self._record = structs.replace(
            self._record,
            done=changed.done,
            failed={name: mask_text(words) for name, words in failed.items()},
            not_done=len(changed.failed),
            state=state,
            problem=self.problem,
        )
        for _ in range(3):
            expires_at = later(Instant(self._record.began_at), KEPT_FOR)
            put = Put(key, CODEC.encode(self._record), self._version, expires_at=expires_at)
            answer = await self.space.commit(put)
            if not isinstance(answer, Conflict):
                self._version = answer.versions[key]
                return
            # Only a process that asks it to stop writes it, too.
            found = (await self.space.read(key)).get(key)
            self._version = 0 if found is None else found.version
            if found is not None and CODEC.decode(found.value).stops:
                self.stop()

    def stop(self) -> None:
        """End it: what was done stays done."""
        self.was_stopped = True
        if self.task is not None and not self.is_over:
            self.task.cancel()

    async def work(self, engine: Engine, tell: Callable[[], None]) -> None:
        """Change all runs that are meant, while this process holds the mutex."""
        state: State = "cut off"
        try:
            async with self.space.mutex(lock_name(self.id)).hold(note=f"by {self._record.user}"):
                telling = asyncio.get_running_loop().create_task(self._go_on_telling())
                try:
                    await change_all(engine, self.counted.bulk, self.counted.filters, self.changed)
                finally:
                    telling.cancel()
                    await asyncio.gather(telling, return_exceptions=True)
                state = "done"
        except StandfastError as problem:
            self.problem, state = mask_text(str(problem)), "broke off"
        except Exception as problem:  # noqa: BLE001 -- told on its page and in the log; nothing waits for it
            self.problem, state = "The log of the server says what.", "broke off"
            log_failure(_log, "a change of many runs", problem)
        finally:
            with contextlib.suppress(StandfastError):  # then it looks as if it was cut off, which it was
                await self.tell("stopped" if self.was_stopped else state)
            tell()

    async def _go_on_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY)
            with contextlib.suppress(StandfastError):  # the next one may succeed
                await self.tell()


@final
class Jobs:
    """The changes of many runs that this process does, or has done, and those that the store tells of.

    Args:
        wake: Called when one has ended, so that pages look again.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self._known: Final[OrderedDict[str, BulkJob]] = OrderedDict()

    async def start(self, space: Space, engine: Engine, user: str, action: str, counted: BulkCount) -> BulkJob:
        """Begin to change runs, once that is written down; refuse if a tenant has too much under way.

        Args:
            space: Of the tenant. What is written down of the work is not an action of the operator.
            engine: In the hands of the operator.
            user: Who that is.
            action: What is done.
            counted: To which runs.
        """
        if sum(job.space is space and not job.is_over for job in self._known.values()) >= MOST_AT_ONCE:
            words = f"{MOST_AT_ONCE} changes of many runs are under way."
            raise PageError(409, "Nothing was done", words, "Wait until one has ended, or stop one.")
        at, count = Instant(engine.runtime.now()), counted.count
        record = BulkRecord(action, counted.given, user, at, count.number, count.has_more)
        job = BulkJob(space, action, counted, record)
        await job.tell()
        job.task = asyncio.get_running_loop().create_task(job.work(engine, self._wake))
        self._known[job.id] = job
        await asyncio.sleep(0)  # a task that is cancelled before it begins would not say how it ended
        for name in [name for name, each in self._known.items() if each.is_over][:-MOST_KEPT]:
            del self._known[name]
        return job

    def here(self, job_id: str) -> BulkJob | None:
        """Return work that this process does or has done."""
        return self._known.get(job_id)

    async def stop(self, space: Space, job_id: str, record: BulkRecord) -> None:
        """End a change of many runs, whichever process does it."""
        here = self.here(job_id)
        if here is not None:
            here.stop()
            return
        key = space.key(BULK_RECORDS, job_id)
        found = (await space.read(key)).get(key)
        if found is not None and record.state == "under way":
            asked = structs.replace(CODEC.decode(found.value), stops=True)
            await space.commit(Put(key, CODEC.encode(asked), found.version, expires_at=found.expires_at))

    async def aclose(self) -> None:
        """End all work."""
        tasks = [job.task for job in self._known.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def read_work(scope: Space, job_id: str) -> BulkRecord:
    """Return the state of work on many runs, whichever process does it."""
    key = scope.key(BULK_RECORDS, job_id[:100])
    found = (await scope.read(key)).get(key)
    if found is None:
        words = "There is no such work, or it was a week ago."
        raise PageError(404, "No such work", words, "The audit says what was done, and to which runs.")
    return await _as_it_is(scope, job_id, CODEC.decode(found.value))


async def list_work(scope: Space, most: int = MOST_KEPT) -> list[tuple[str, BulkRecord]]:
    """Return the latest work on many runs, the newest first."""
    page = await scope.scan(*scope.key(BULK_RECORDS).within(), limit=most, reverse=True)
    found = [(key.parts[-1], CODEC.decode(record.value)) for key, record in page.records.items()]
    return [(name, await _as_it_is(scope, name, record)) for name, record in found]


async def _as_it_is(scope: Space, job_id: str, record: BulkRecord) -> BulkRecord:
    """Return a record with what it cannot say itself: that the process which did the work has ended."""
    if record.state != "under way":
        return record
    told = await scope.explain(lock_name(job_id))
    if any(each.is_alive for each in told.holders):
        return record
    key = scope.key(BULK_RECORDS, job_id)
    again = (await scope.read(key)).get(key)  # it may have ended between the two looks
    now = record if again is None else CODEC.decode(again.value)
    # The mutex is taken just after the record is written.
    has_just_begun = not now.seen and now.began_at > told.at - 5 * MICROSECONDS
    return now if now.state != "under way" or has_just_begun else structs.replace(now, state="cut off")
