"""What is measured of growth, each in a process of its own: ``python -m benchmarks._growth_work branches 1000``.

Prints JSON: microseconds of CPU for each unit, and in milliseconds of CPU the longest turn of the event loop and the
longest garbage collection, which is not part of it: that depends on how much is alive, and on the program's settings.
With ``beside branches 1000`` it prints how long the steps of another run of the process take meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

import standfast as sf
from benchmarks._workflow_sleepers import all_asleep, multiply, nap, one_sleeper
from standfast.flows.dispatcher import Dispatcher
from standfast.flows.request import Call
from standfast.flows.tenants import TenantLimits
from standfast.locks.line import OUT_OF_SIGHT, Entry, Holder, OfRun, Rules
from standfast.locks.line_records import FEW_HOLDERS, GRANTS, HELD, LIMIT, Grant, Head, LineKeys, head_value
from standfast.stores.protocol import Put
from standfast.workflows.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

LEAST: Final = 200
"""Few units are measured again and again, so that what a run costs by itself is not all that is seen."""

AT_ONCE: Final = 100
"""How many callers send at a time: what all of them do in one turn of the event loop is theirs."""

SLOWEST_START: Final = 0.0005
"""Seconds that starting a run takes at the most, and its falling asleep, on average."""

ROUNDS: Final = 5
"""How often an empty store and a full one are measured, in turns."""

BESIDE: Final = 2.0
"""Seconds for which another run is looked at, at least."""

LISTED: Final = 100
"""How often runs are listed."""

RUNS: Final = 300
"""How many runs are measured where something else is what there is much of."""


@sf.step
async def one(number: int) -> int:
    """Do next to nothing."""
    return number


@sf.workflow
async def single(ctx: sf.Context, number: int) -> int:
    """Take one step."""
    return await ctx.step(one, number)


@sf.workflow
async def branches(ctx: sf.Context, count: int) -> None:
    """Take many steps side by side."""
    await ctx.gather(*(ctx.step(one, number) for number in range(count)))


@sf.workflow
async def children(ctx: sf.Context, count: int) -> None:
    """Start many runs side by side, and wait for all."""
    await ctx.gather(*(ctx.child(single, number) for number in range(count)))


@sf.workflow
async def timers(ctx: sf.Context, count: int) -> None:
    """Sleep side by side until the same moment."""
    await ctx.gather(*(ctx.sleep(0.3) for _ in range(count)))


@sf.workflow
async def signals(ctx: sf.Context, count: int) -> None:
    """Take many signals, one after another."""
    for _ in range(count):
        await ctx.wait_signal("go")


@sf.workflow
async def updates(ctx: sf.Context, count: int) -> int:
    """Answer many updates."""
    total = 0

    def add(number: int) -> int:
        nonlocal total
        total += number
        return total

    ctx.on_update("add", add)
    await ctx.wait_until(lambda: total >= count)
    return total


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def queued(ctx: sf.Context, number: int) -> int:
    """Run one at a time."""
    return await ctx.step(one, number)


@sf.workflow(concurrency=sf.Limit(1_000_000))
async def limited(ctx: sf.Context, number: int) -> int:
    """Run beside very many others."""
    return await ctx.step(one, number)


FLOW: Final = sf.Flow("growth")
DISPATCHERS: Final[dict[sf.Engine, Dispatcher]] = {}


@FLOW.action(concurrency=sf.Queue(key=lambda _: "one", max_waiting=10_000, timeout="1 hour"))
async def in_turn(_request: sf.Request) -> None:
    """Answer one at a time."""


@sf.workflow
async def neighbour(ctx: sf.Context) -> None:
    """Take one step after another, and note how long each takes, until it is told to stop."""
    while not stopped:
        began = time.perf_counter()
        await ctx.step(one, 1)
        took.append(time.perf_counter() - began)


took: list[float] = []
stopped: list[bool] = []

WORKFLOWS: Final[list[Any]] = [neighbour, single, branches, children, timers, signals, updates, queued, limited, nap]


async def at_once(calls: list[Callable[[], Awaitable[object]]]) -> None:
    """Make many calls, some at a time."""
    left = iter(calls)

    async def caller() -> None:
        for call in left:
            await call()
            await asyncio.sleep(0)

    await asyncio.gather(*(caller() for _ in range(min(AT_ONCE, len(calls)))))


async def all_waiting(make: Callable[[int], Coroutine[Any, Any, None]], count: int) -> list[asyncio.Task[None]]:
    """Begin many tasks that then wait together, some in each turn of the event loop."""
    tasks: list[asyncio.Task[None]] = []
    for number in range(count):
        tasks.append(asyncio.create_task(make(number)))
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
    return tasks


async def a_run(engine: sf.Engine, workflow: Any, count: int) -> None:  # noqa: ANN401 -- any workflow that takes a number
    """Measure one run with so many parts."""
    await (await engine.start(workflow, count)).result()


async def sends_signals(engine: sf.Engine, count: int) -> None:
    """Measure signals to one run."""
    run = await engine.start(signals, count)
    await at_once([lambda: run.signal("go", None)] * count)
    await run.result()


async def sends_updates(engine: sf.Engine, count: int) -> None:
    """Measure updates of one run."""
    run = await engine.start(updates, count)
    await at_once([lambda: run.update("add", 1, timeout=300)] * count)
    await run.result()


async def runs_due(engine: sf.Engine, count: int) -> None:
    """Measure runs that sleep until the same moment, their start included: they are all asleep by then."""
    until = datetime.now(UTC) + timedelta(seconds=0.5 + count * SLOWEST_START)
    runs = await started(engine, nap, [until] * count)
    await all_asleep(engine)
    await at_once([run.result for run in runs])


async def in_one_line(engine: sf.Engine, count: int) -> None:
    """Measure runs that wait for one place."""
    await at_once([run.result for run in await started(engine, queued, range(count))])


async def purge(engine: sf.Engine, count: int) -> None:
    """Measure deleting runs that have ended; that they are there is not measured."""
    assert await engine.purge(status="completed") >= count


async def make_ended(engine: sf.Engine, count: int) -> None:
    """Run so many runs to their end."""
    await at_once([run.result for run in await started(engine, single, range(count))])


async def make_kept(engine: sf.Engine, count: int) -> None:
    """Run so many runs to their end, and wait until they need not be kept."""
    await make_ended(engine, count)
    await asyncio.sleep(1.1)


async def sweeps(engine: sf.Engine, count: int) -> None:
    """Measure how runs that are kept no longer are deleted."""
    sweeper, swept = Sweeper(engine.runtime, sf.admin.Retention(completed=1)), 0
    while swept < count:
        swept += await sweeper.sweep()


async def requests(engine: sf.Engine, count: int) -> None:
    """Measure requests that queue for one session, each with a caller that waits."""
    dispatcher = DISPATCHERS.get(engine)
    if dispatcher is None:
        dispatcher = DISPATCHERS[engine] = Dispatcher(engine, [FLOW], tenants=TenantLimits(waiting=1_000_000))
        await dispatcher.open()

    async def ask(user: int) -> None:
        principal = sf.Principal("default", f"u{user}")
        call = Call(flow="growth", action="in_turn", inputs=b"{}", principal=principal, transport="local")
        await (await dispatcher.dispatch(call, here=True)).packed()

    await asyncio.gather(*await all_waiting(ask, count))


async def started(engine: sf.Engine, workflow: Any, given: Iterable[Any]) -> list[Any]:  # noqa: ANN401 -- any workflow
    """Start many runs, some at a time; return them in that order."""
    runs: dict[int, Any] = {}

    async def start(number: int, value: Any) -> None:  # noqa: ANN401 -- whatever the workflow takes
        runs[number] = await engine.start(workflow, value)

    await at_once([functools.partial(start, number, value) for number, value in enumerate(given)])
    return [runs[number] for number in sorted(runs)]


async def waiters(engine: sf.Engine, count: int) -> None:
    """Measure tasks that stand in one line for a lock."""
    mutex = engine.space.mutex("line")

    async def hold(_: int) -> None:
        async with mutex.hold():
            pass

    async with mutex.hold():
        tasks = await all_waiting(hold, count)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)


async def renewals(engine: sf.Engine, count: int) -> None:
    """Measure holding many locks for a while, their taking included."""
    holds: list[Any] = []

    async def take(number: int) -> None:
        holds.append(engine.space.mutex(f"lock {number}").hold())
        await holds[-1].__aenter__()

    await at_once([functools.partial(take, number) for number in range(count)])
    await asyncio.sleep(1.0)
    await at_once([functools.partial(hold.__aexit__, None, None, None) for hold in holds])


async def beside_holders(engine: sf.Engine, count: int) -> None:
    """Measure runs under a limit of which so many places are held; that they are is written in bulk before."""
    for number in range(count):
        await (await engine.start(limited, number)).result()


async def hold_places(engine: sf.Engine, count: int) -> None:
    """Write the records of runs that have a place of the limit: they are there, and do nothing."""
    space, address = engine.space, (LIMIT, "limited", "type")
    keys = LineKeys(space, address)
    now = (await space.read(keys.head)).at
    holders = [
        Holder(Entry(name, name, OfRun(name), now), OUT_OF_SIGHT, now) for name in map("r{:06}".format, range(count))
    ]
    listed = [structs.replace(each, slot=slot) for slot, each in enumerate(holders[:FEW_HOLDERS])]
    counted = holders[FEW_HOLDERS:]
    head = Head("bulk.1", LIMIT, Rules(1_000_000), tuple(listed), unseen=len(counted))
    puts = [Put(keys.grant(each.slot), GRANTS.encode(Grant(each.entry.id, each.entry.owner, now))) for each in listed]
    puts += [Put(keys.held(each.entry.id), HELD.encode(each)) for each in counted]
    for start in range(0, len(puts), 100):
        await space.commit(*puts[start : start + 100])
    await space.commit(Put(keys.head, head_value(head)))


WORK: Final[dict[str, Callable[[sf.Engine, int], Awaitable[None]]]] = {
    "branches": lambda engine, count: a_run(engine, branches, count),
    "children": lambda engine, count: a_run(engine, children, count),
    "timers": lambda engine, count: a_run(engine, timers, count),
    "signals": sends_signals,
    "updates": sends_updates,
    "runs_due": runs_due,
    "in_one_line": in_one_line,
    "waiters": waiters,
    "renewals": renewals,
    "beside_holders": beside_holders,
    "requests": requests,
    "purge": purge,
    "sweeps": sweeps,
}

BEFORE: Final[dict[str, Callable[[sf.Engine, int], Awaitable[None]]]] = {"purge": make_ended, "sweeps": make_kept}
"""What is done before, and not measured."""


class Collector:
    """How long Python's garbage collector took, in all and at a time: it looks at every object that is alive."""

    def __init__(self) -> None:
        self.seconds = self.longest = self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            took = time.thread_time() - self._began
            self.seconds, self.longest = self.seconds + took, max(self.longest, took)


async def measure(what: str, count: int) -> dict[str, float]:
    """Return what one unit costs, the longest turn of the loop, and the longest garbage collection apart from it."""
    longest, work, held, collector = 0.0, WORK[what], 0, Collector()
    if what == "beside_holders":
        count, held = RUNS, count

    async def beat() -> None:
        nonlocal longest
        while True:
            began, collected = time.thread_time(), collector.seconds
            await asyncio.sleep(0.001)  # when it is over, the turn that is under way still has to end
            longest = max(longest, time.thread_time() - began - (collector.seconds - collected))

    with tempfile.TemporaryDirectory() as folder:
        async with sf.Engine(f"sqlite:///{folder}/store.db", workflows=WORKFLOWS) as engine:
            await a_run(engine, branches, 10)
            if held:
                await hold_places(engine, held)
                await work(engine, 10)
            beating, times = asyncio.create_task(beat()), max(1, LEAST // count)
            await asyncio.sleep(0.01)
            longest = collector.longest = used = wall = 0.0
            for _ in range(times):
                began_at = time.perf_counter()
                if what in BEFORE:
                    await BEFORE[what](engine, count)
                    await asyncio.sleep(0.01)
                    longest = collector.longest = 0.0
                began = time.process_time()
                await work(engine, count)
                used, wall = used + time.process_time() - began, wall + time.perf_counter() - began_at
            beating.cancel()
            for dispatcher in DISPATCHERS.values():
                await dispatcher.aclose()
    found = {"cpu": used / (times * count) * 1e6, "pause": longest * 1000, "wall": wall / times}
    return {**found, "collection": collector.longest * 1000}


async def measure_beside(what: str, count: int) -> dict[str, float]:
    """Return how long the steps of a run take, in milliseconds, while another one has so many parts."""
    with tempfile.TemporaryDirectory() as folder:
        async with sf.Engine(f"sqlite:///{folder}/store.db", workflows=WORKFLOWS) as engine:
            await a_run(engine, branches, 10)
            run = await engine.start(neighbour)
            await asyncio.sleep(0.5)
            took.clear()
            began = time.perf_counter()
            while time.perf_counter() - began < BESIDE:
                await WORK[what](engine, count)
            seen = sorted(took)
            stopped.append(True)
            await run.result()
    return {"p50": 1000 * seen[len(seen) // 2], "p99": 1000 * seen[len(seen) * 99 // 100], "steps": len(seen)}


# --- a store in which much lies ------------------------------------------------------------------------------------


def fill(path: Path, ended: int, asleep: int) -> None:
    """Write runs that have ended and runs that sleep, in bulk."""
    if not ended:
        return
    sleeper = asyncio.run(one_sleeper(path))
    multiply(path, sleeper, asleep)
    multiply(path, asyncio.run(one_ended(path)), ended)


async def one_ended(path: Path) -> str:
    """Run a run to its end; return its id."""
    async with sf.Engine(f"sqlite:///{path}", workflows=WORKFLOWS) as engine:
        run = await engine.start(single, 1)
        await run.result()
        return str(run.id)


async def drive(path: str) -> dict[str, float]:
    """Return what a start to its result, a claim, and taking over the runs of a dead worker cost."""
    found: dict[str, float] = {}
    async with sf.Engine(f"sqlite:///{path}", workflows=WORKFLOWS) as engine:
        for _ in range(50):
            await a_run(engine, single, 1)
        began = time.process_time()
        for number in range(RUNS):
            await a_run(engine, single, number)
        found["start, step and end"] = (time.process_time() - began) / RUNS * 1e6
        began = time.process_time()
        for _ in range(LISTED):
            await engine.list(status="completed", workflow="single", newest_first=True, limit=20)
        found["a list of 20"] = (time.process_time() - began) / LISTED * 1e6
        await all_asleep(engine)
    async with sf.Engine(f"sqlite:///{path}", drive=False) as client:
        runs = [await client.start(single, number) for number in range(RUNS)]
        began = time.process_time()
        async with sf.Engine(f"sqlite:///{path}", workflows=WORKFLOWS) as engine:
            for run in runs:
                await engine.result(run.id)
        found["claim, step and end"] = (time.process_time() - began) / RUNS * 1e6
    lose_some(path)
    began = time.process_time()
    async with sf.Engine(
        f"sqlite:///{path}", workflows=WORKFLOWS, worker=sf.admin.WorkerLimits(linger="1 hour")
    ) as engine:
        while len(engine.runtime.loaded) < RUNS:  # noqa: ASYNC110 -- what is measured must not be slowed down by telling
            await asyncio.sleep(0.01)
        found["recovery"] = (time.process_time() - began) / RUNS * 1e6
    return found


def lose_some(path: str) -> None:
    """Let a process drive runs that wait, and kill it."""
    command = [sys.executable, "-m", "benchmarks._growth_work", "lose", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        killed.kill()


async def lose(path: str) -> None:
    """Drive runs that wait, until this process is killed."""
    async with sf.Engine(
        f"sqlite:///{path}", workflows=WORKFLOWS, worker=sf.admin.WorkerLimits(linger="1 hour")
    ) as engine:
        for _ in range(RUNS):
            await engine.start(signals, 1)
        print("ready", flush=True)
        await asyncio.sleep(600)


def main(what: str, given: str, size: str = "") -> None:
    """Measure one thing, and print it."""
    if what == "beside":
        print(json.dumps(asyncio.run(measure_beside(given, int(size)))))
        return
    if what == "lose":
        asyncio.run(lose(given))
        return
    count = int(given)
    if what != "store":
        print(json.dumps(asyncio.run(measure(what, count))))
        return
    with tempfile.TemporaryDirectory() as folder:
        empty, full = Path(folder) / "empty.db", Path(folder) / "full.db"
        fill(full, count, count // 5)
        rounds = [(asyncio.run(drive(str(empty))), asyncio.run(drive(str(full)))) for _ in range(ROUNDS)]
        print(
            json.dumps({name: compared([(one[name], other[name]) for one, other in rounds]) for name in rounds[0][0]})
        )


def compared(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the medians of what was measured in turns on an empty store and on a full one, and of their ratios."""
    empty, full = (statistics.median(each) for each in zip(*pairs, strict=True))
    return {"empty": empty, "full": full, "ratio": statistics.median(full / empty for empty, full in pairs)}


if __name__ == "__main__":
    if most := int(os.environ.get("STANDFAST_BENCH_CPU", "0")):
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    main(*sys.argv[1:])
