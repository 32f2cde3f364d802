"""Gauges: how many runs are ready and since when, and what waits in lines. Read from the store when they are asked for.

Reading is bounded: by a number of records for each gauge, and by time for all of them. What was read is kept for a few
seconds, so that the number of scrapers makes no difference to the store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import Instant, monotonic, seconds_between
from standfast.errors import StandfastError
from standfast.locks.inspect import front_waits
from standfast.stores.group_commit import GroupedStore
from standfast.telemetry import instruments as of
from standfast.telemetry.instruments import GaugeValue, bounded
from standfast.telemetry.metrics import TEXT
from standfast.workflows.overview import refused_writes
from standfast.workflows.records import RUN_STATES, RunKeys
from standfast.workflows.runtime import ready_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.workflows.engine import Engine

COUNTED: Final = 1_000
"""How many runs, workers or lines are counted at most: from there on a number says "at least"."""

RECORDS: Final = 50_000
"""How many records of the store are counted at most: it takes a few milliseconds."""

LOOKED_AT: Final = 200
"""How many ready runs are read to learn since when they are ready."""

KEPT: Final = 5.0
"""Seconds for which what was read is shown again."""

WITHIN: Final = 2.0
"""Seconds that reading takes at most. What is not read by then is left out."""

PAGE: Final = 100


class Backlog(Struct, frozen=True):
    """What waits for workers, and what they have: of all workers on the store.

    Attributes:
        ready: How many runs could go on and have no worker; 1,000 means at least that many.
        oldest: For how many seconds the oldest of them has been ready, as far as was looked up.
        without_code: How many of those that were looked up need a workflow, or a version, that is not here.
        misfits: How many of those that were looked up workers have tried, with code that does not fit them.
        claimed: How many runs workers have claimed; 1,000 means at least that many.
        workers: How many workers there are.
    """

    ready: int = 0
    oldest: float = 0.0
    without_code: int = 0
    misfits: int = 0
    claimed: int = 0
    workers: int = 0


async def backlog_of(engine: Engine) -> Backlog:
    """Read what waits for workers."""
    space, runtime = engine.space, engine.runtime
    ready = await _ids(space, space.key("ready"), COUNTED)
    due, now = await _due(space)
    names = dict.fromkeys((*due, *ready))
    oldest, without, misfits = max((seconds_between(at, now) for at in due.values()), default=0.0), 0, 0
    looked_at = list(names)[:LOOKED_AT]
    page = space.at_most(PAGE)
    for first in range(0, len(looked_at), page):
        keys = [RunKeys(space, each).state for each in looked_at[first : first + page]]
        seen = await space.read(*keys)
        for key in keys:
            record = seen.get(key)
            if record is None:
                continue
            state = RUN_STATES.decode(record.value)
            if state.owner or state.has_ended or state.status == "quarantined":
                continue  # a worker has it by now, or is only to be told something
            without += (state.workflow, state.version) not in runtime.workflows
            misfits += state.is_misfit
            oldest = max(oldest, ready_for(state, seen.at) or 0.0)
    workers = await _ids(space, space.key("worker"), COUNTED)
    claimed = await _ids(space, space.key("own"), COUNTED)
    return Backlog(min(len(names), COUNTED), oldest, without, misfits, len(claimed), len(workers))


async def _ids(scope: Scope, prefix: RecordKey, most: int) -> list[str]:
    found: list[str] = []
    start: RecordKey | None
    start, end = prefix.within()
    while start is not None and len(found) < most:
        page = await scope.scan(start, end, limit=min(PAGE * 5, most - len(found)))
        found += [key.parts[-1] for key in page.records]
        start = page.more
    return found


async def _due(scope: Scope) -> tuple[dict[str, Instant], Instant]:
    """Return the runs whose timers are over, since when, and what time it is."""
    start, end = scope.key("timer").within()
    page = await scope.scan(start, end, limit=COUNTED)
    timers = [(key.parts[-1], Instant(int(key.parts[-2]))) for key in page.records]
    return {name: at for name, at in timers if at <= page.at and not name.startswith("@")}, page.at


@final
class Gauges:
    """The gauges of one open engine.

    Args:
        engine: An engine that is open.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._values: tuple[GaugeValue, ...] = ()
        self._backlog = Backlog()
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._loop: Final = asyncio.get_running_loop()

    async def refresh(self, within: float = WITHIN) -> None:
        """Read them, unless that was done in the last seconds; wait for at most ``within`` seconds."""
        self._begin()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=within)

    def refresh_soon(self) -> None:
        """Read them in the background, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            return  # the loop is closed, and the engine with it

    async def backlog(self) -> Backlog:
        """Return what waits for workers, as of the last seconds."""
        await self.refresh()
        return self._backlog

    @property
    def is_up(self) -> bool:
        """Whether the store answered when it was last asked, and took writes."""
        return self._read_at is not None and any(each.value for each in self._values if each.instrument is of.STORE_UP)

    def read(self) -> list[GaugeValue]:
        """Return what was last read, and what this process knows without asking."""
        values = [*self._values, *self._own()]
        if self._read_at is not None:
            values.append(GaugeValue(of.GAUGES_AGE, monotonic() - self._read_at))
        return bounded(values)

    def _begin(self) -> None:
        is_fresh = self._read_at is not None and monotonic() - self._read_at < KEPT
        if self._reading is None and not is_fresh:
            task = self._loop.create_task(self._refresh())
            self._reading = None if task.done() else task  # an eager task may be over by now

    async def _refresh(self) -> None:
        began, values = monotonic(), list[GaugeValue]()
        try:
            async with asyncio.timeout(WITHIN):
                self._backlog = backlog = await backlog_of(self._engine)
                values += [
                    GaugeValue(of.READY, backlog.ready),
                    GaugeValue(of.READY_OLDEST, backlog.oldest),
                    GaugeValue(of.WITHOUT_CODE, backlog.without_code),
                    GaugeValue(of.MISFITS, backlog.misfits),
                    GaugeValue(of.CLAIMED, backlog.claimed),
                    GaugeValue(of.WORKERS, backlog.workers),
                ]
                values += await self._of_store()
                values.append(GaugeValue(of.STORE_UP, 0.0 if await refused_writes(self._engine.space) else 1.0))
        except (StandfastError, TimeoutError):
            values.append(GaugeValue(of.STORE_UP, 0.0))
        finally:
            self._reading = None
        values.append(GaugeValue(of.GAUGES_SECONDS, monotonic() - began))
        self._values, self._read_at = tuple(values), monotonic()

    async def _of_store(self) -> list[GaugeValue]:
        space = self._engine.space
        values: list[GaugeValue] = []
        waiting, oldest = dict[str, int](), dict[str, float]()
        async for family, number, waited in front_waits(space, most=COUNTED):
            name = family or TEXT
            waiting[name] = waiting.get(name, 0) + number
            oldest[name] = max(oldest.get(name, 0.0), waited)
        values += [GaugeValue(of.LINES_WAITING, number, (family,)) for family, number in waiting.items()]
        values += [GaugeValue(of.LINES_OLDEST, waited, (family,)) for family, waited in oldest.items()]
        quarantined = await self._engine.count(status="quarantined", most=COUNTED)
        values.append(GaugeValue(of.QUARANTINED, quarantined.number))
        store, backend = space.store, (space.store.capabilities.backend,)
        if isinstance(store, GroupedStore):  # an embedded one knows its size; a server has said it in the last minute
            size, known = store.size(), [(of.STORE_RECORDS, store.count(RECORDS))]
            if size is not None:
                known += [(of.STORE_BYTES, size.size), (of.STORE_FREE, size.free)]
            if (told := await store.measure()) is not None:
                known += [(of.STORE_BYTES, told.size), (of.STORE_RECORDS, told.records)]
            values += [GaugeValue(instrument, value, backend) for instrument, value in known if value is not None]
        return values

    def _own(self) -> Iterable[GaugeValue]:
        try:
            loaded = len(self._engine.runtime.loaded)
        except StandfastError:
            return
        yield GaugeValue(of.LOADED, loaded)
        if self._engine.worker is not None:
            yield GaugeValue(of.UTILISATION, self._engine.worker.utilisation)
