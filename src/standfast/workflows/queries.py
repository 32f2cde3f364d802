"""What can be known of runs from outside: how they are, what they recorded, and when they end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import RunNotFoundError, StandfastError
from standfast.stores.watch import SkipsKeys
from standfast.workflows.failures import Failure
from standfast.workflows.records import HEADERS, RUN_STATES, Header, HistoryEvent, RunKeys, RunState, Status, events_of
from standfast.workflows.timeline import timeline_of
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.workflows.timeline import Timeline


# --- waiting for the ends of runs, wherever they are driven --------------------------------------------------------

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at a run whose end is waited for, if nothing tells earlier."""

FEW: Final = 16
"""How many runs are watched one by one. With more, one watch on all runs costs less than one on each."""

PAGE: Final = 100
"""The most records that are read at once."""


@final
class Endings:
    """Tells everybody in this engine who waits for the end of a run.

    Args:
        scope: Where the runs lie.
        loaded: The runs that are driven here: of those it is told without looking.

    Attributes:
        claiming: Those that a commit under way claims for this process: as if they were loaded by then.
    """

    def __init__(self, scope: Scope, loaded: Container[str] = ()) -> None:
        self._scope, self._loaded = scope, loaded
        self._root: Final = scope.key("life")
        self.claiming: Final[set[str]] = set()
        self._watched = 0
        self._waiting: Final[dict[str, list[asyncio.Future[RunState]]]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._new: list[str] = []
        self._looking: asyncio.Task[None] | None = None

    async def of(self, run_id: str) -> RunState:
        """Return how a run has ended, once it has.

        Raises:
            RunNotFoundError: There is no such run.
        """
        if self._watched >= FEW:
            return await self._listen(run_id)
        self._watched += 1
        try:
            async with self._scope.watch(RunKeys(self._scope, run_id).state) as watch:
                while (state := (await self._read([run_id]))[run_id]) is None or not state.has_ended:
                    if state is None:
                        raise RunNotFoundError(run_id)
                    await watch.wait(LOOK_EVERY)
                return state
        finally:
            self._watched -= 1

    async def _listen(self, run_id: str) -> RunState:
        future: asyncio.Future[RunState] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(future)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._follow())
        self._look_soon(run_id)
        try:
            return await future
        finally:
            self._forget(run_id, future)

    def end_claim(self, run_id: str) -> None:
        """Say that a commit that claims a run is over: if it is not driven here, what was skipped is looked at."""
        self.claiming.discard(run_id)
        if run_id in self._waiting and run_id not in self._loaded:
            self._look_soon(run_id)

    def _look_soon(self, run_id: str) -> None:
        self._new.append(run_id)
        if len(self._new) == 1:  # an eager task takes it at once, others when this turn of the loop is over
            self._looking = asyncio.get_running_loop().create_task(self._look_at_new())

    async def _look_at_new(self) -> None:
        """Look at runs that may have ended before their end was waited for: all of one turn of the loop together."""
        new, self._new = self._new, []
        try:
            await self._look_at(new)
        except StandfastError as problem:
            self._fail(problem, new)

    def _forget(self, run_id: str, future: asyncio.Future[RunState]) -> None:
        waiting = self._waiting.get(run_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(run_id, None)
        if not self._waiting and self._listening is not None:
            self._listening.cancel()
            self._listening = None

    def tell(self, run_id: str, state: RunState) -> None:
        """Say that a run has ended here."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(state)

    async def _follow(self) -> None:
        time, due = asyncio.get_running_loop().time, float("-inf")
        try:
            async with self._scope.watch(self._root) as watch:
                if isinstance(watch, SkipsKeys):
                    watch.skips = self._is_told_here
                while True:
                    hint = None if time() >= due else await watch.wait(due - time())
                    if hint is None or not hint.complete:  # also while others end all the time: a hint may be lost
                        due = time() + LOOK_EVERY
                        await self._look_at(list(self._waiting))
                        continue
                    await asyncio.sleep(0)  # this process may have claimed it, and be about to say so
                    if changed := [_run_of(key, self._root) for key in hint.about if not self._is_told_here(key)]:
                        await self._look_at(changed)
        except StandfastError as problem:
            self._fail(problem)

    def _is_told_here(self, state: RecordKey) -> bool:
        """Return True if no end is waited for of the run whose state has changed, or its end will be told."""
        run_id = _run_of(state, self._root)
        return run_id not in self._waiting or run_id in self._loaded or run_id in self.claiming

    async def _look_at(self, run_ids: list[str]) -> None:
        for run_id, state in (await self._read(run_ids)).items():
            if state is None:
                self._fail(RunNotFoundError(run_id), [run_id])
            elif state.has_ended:
                self.tell(run_id, state)

    def _fail(self, problem: StandfastError, run_ids: Iterable[str] | None = None) -> None:
        for run_id in list(self._waiting if run_ids is None else run_ids):
            for future in self._waiting.pop(run_id, ()):
                if not future.done():
                    future.set_exception(problem)

    async def _read(self, run_ids: list[str]) -> dict[str, RunState | None]:
        found: dict[str, RunState | None] = {}
        page = self._scope.at_most(PAGE)
        for first in range(0, len(run_ids), page):
            keys = {run_id: RunKeys(self._scope, run_id).state for run_id in run_ids[first : first + page]}
            seen = await self._scope.read(*keys.values())
            for run_id, key in keys.items():
                record = seen.get(key)
                found[run_id] = None if record is None else RUN_STATES.decode(record.value)
        return found


def _run_of(state: RecordKey, root: RecordKey) -> str:
    """Return the run whose state lies at a key, without reading all of the key: this is asked of every change."""
    rest = state[len(root) :]
    return state.parts[-1] if rest.count(b"\x00") != 1 else rest[:-2].decode()


# --- what can be known of a run from outside -----------------------------------------------------------------------


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
        owner: The presence that drives it; empty if none does.
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
        root: The run at the top of its tree; empty if it was not started as a child.
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


def info_of(run_id: str, header: Header, state: RunState, progress: bytes | None = None) -> RunInfo:
    """Return what two records say about a run."""
    return RunInfo(
        run_id,
        header.workflow,
        header.version,
        state.status,
        header.started_at,
        state.changed_at,
        PLAIN.unpack(header.input),
        state.owner,
        state.waits_for,
        None if state.lease_awaited else state.until,  # that is when it is looked at again
        PLAIN.unpack(state.result) if state.result else None,
        state.failure,
        state.cancel,
        header.parent,
        None if progress is None else PLAIN.unpack(progress),
        state.claims,
        state.deaths,
        header.tags,
        tuple(line.label for line in header.lines),
        header.root,
        state.continues,
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
    seen = await scope.read(keys.header, keys.state, keys.progress)
    header, state, progress = seen.get(keys.header), seen.get(keys.state), seen.get(keys.progress)
    if header is None or state is None:
        raise RunNotFoundError(run_id)
    return info_of(
        run_id,
        HEADERS.decode(header.value),
        RUN_STATES.decode(state.value),
        None if progress is None else progress.value,
    )


class HistoryEntry(Struct, frozen=True):
    """One line of a run's history, for people.

    Attributes:
        number: Its place in the history, from 0 on.
        kind: Which operation: ``step``, ``tried`` (an attempt that failed), ``sleep``, ``signal`` ...
        id: Where in the code.
        at: When it was recorded, by the store's time.
        value: What it returned.
        failure: What it raised.
        until: For those that wait: until when.
        took: Of a step: for how many seconds its code ran; None: that is not known.
        worker: The presence that took the run up, with the first event that it recorded.
        host: The machine of that worker.
    """

    number: int
    kind: str
    id: str
    at: Instant
    value: Any = None
    failure: Failure | None = None
    until: Instant | None = None
    took: float | None = None
    worker: str = ""
    host: str = ""


async def read_history(scope: Scope, run_id: str, *, first: int = 0) -> tuple[HistoryEntry, ...]:
    """Read everything that a run has recorded; or only what came after the first ``first`` events."""
    events = await events_of(scope, RunKeys(scope, run_id), first=first)
    return tuple(entry_of(number, event) for number, event in enumerate(events, first))


def entry_of(number: int, event: HistoryEvent) -> HistoryEntry:
    """Return an event of a history as a line for people."""
    value = PLAIN.unpack(event.value) if event.value else None
    took = event.took / MICROSECONDS if event.took else None
    worker, host = ("", "") if event.driven is None else (event.driven.by, event.driven.host)
    return HistoryEntry(number, event.kind, event.id, event.at, value, event.failure, event.until, took, worker, host)


async def read_timeline(scope: Scope, run_id: str) -> Timeline:
    """Read where the time of a run went."""
    keys = RunKeys(scope, run_id)
    seen = await scope.read(keys.header, keys.state)
    header, state = seen.get(keys.header), seen.get(keys.state)
    if header is None or state is None:
        raise RunNotFoundError(run_id)
    events = await events_of(scope, keys)
    return timeline_of(run_id, HEADERS.decode(header.value), RUN_STATES.decode(state.value), events, seen.at)
