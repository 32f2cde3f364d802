"""A storm with operators: workers are killed and stopped, while an operator does whatever operators may.

Nothing is left out of the checks because of that but what an operator did itself: a run that was touched need not have
its result, and its steps may run once more for each thing that was done to it. Every run ends; what at-most-once and
transactions promise holds; fences grow; fresh runs go through; and workers with nothing to do use no processor.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.clock import monotonic
from standfast.errors import (
    OutcomeUnknownError,
    ResultTimeoutError,
    RunNotFoundError,
    StoreBusyError,
    StoreUnavailableError,
    WorkflowError,
)
from tests.fork_server import forked_exec
from tests.integration.workflows.checks import Excuses, check, check_locks, in_time, records_of
from tests.integration.workflows.flows import SHAPES, adder, holder, listener, locker, payer, queued
from tests.integration.workflows.nursery import ROOT
from tests.integration.workflows.storm import expected
from tests.sizes import size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    import standfast as sf
    from tests.integration.workflows.ledger import Entry, Ledger
    from tests.integration.workflows.nursery import Nursery

WORKERS: Final = 4
CLIENTS: Final = 12
LEASE: Final = 2.0
PATIENCE: Final = 90.0
"""Seconds within which everything has ended on a busy machine, once nobody disturbs it any more."""

SOON: Final = float(size(full=10, quick=3))
"""Seconds after which a run that waits for somebody is cancelled."""

MEASURED: Final = 3.0
"""For how many seconds workers are watched that have nothing to do."""

IDLE: Final = 0.03
"""The share of a processor that such a worker may use."""

BRIEF: Final = ":brief_work"
"""Steps that may be executed and not recorded: the time of their lock may be over."""

FOR_SOMEBODY: Final = ("the signal ", "a predicate")


def family_of(run: str) -> str:
    """Return the first of the runs that one descends from."""
    return re.split(r"[.~]", run, maxsplit=1)[0]


class Told(Struct):
    """What operators have done: to each family of runs, how often what."""

    verbs: dict[str, Counter[str]]

    @classmethod
    def by(cls, entries: Iterable[Entry]) -> Told:
        """Return what a ledger tells."""
        verbs: dict[str, Counter[str]] = defaultdict(Counter)
        for entry in entries:
            if entry.what == "operate":
                verbs[family_of(entry.key)][entry.name] += 1
        return cls(verbs)

    def of(self, key: str) -> Counter[str]:
        """Return what was done to a run, or to the run of a step, and to those that belong to it."""
        return self.verbs.get(family_of(key.partition(":")[0]), Counter())


@final
class OperatedStorm:
    """Clients, killed and stopped workers, and an operator."""

    def __init__(self, engine: sf.Engine, nursery: Nursery, ledger: Ledger, seed: int) -> None:
        self._engine, self._nursery, self._ledger = engine, nursery, ledger
        has_sql = engine.space.store.capabilities.commit_with
        shapes = (*SHAPES, holder, locker, locker, queued)
        self._shapes: Final = [shape for shape in shapes if has_sql or shape is not payer]
        self._chance: Final = random.Random(seed)
        self._over: Final = asyncio.Event()
        self._numbers: Final = count(1)
        self.started = 0
        self.stopped: Final[set[int]] = set()

    # --- clients -------------------------------------------------------------------------------------------------

    async def client(self) -> None:
        """Start one run after another, and look what becomes of each."""
        while not self._over.is_set():
            await self.one(self._chance.choice(self._shapes), self._chance.randint(1, 3))

    async def one(self, shape: sf.Workflow[..., Any], number: int) -> None:
        """Start a run, send what it waits for, and check what it comes to, unless an operator meddled with it."""
        lane = (self._chance.choice(("north", "south")),) if shape is queued else ()
        key = f"start {next(self._numbers)}"
        run: sf.Run[Any] = await ask(lambda: self._engine.start(shape, *lane, number, idempotency_key=key))
        self.started += 1
        try:
            for place in range(number if shape in (listener, adder) else 0):
                await self._tell(run, shape, place)
            result = await ask(lambda: run.result(timeout=PATIENCE))
        except ResultTimeoutError:
            if not Told.by(self._ledger.entries()).of(run.id):
                raise
        except WorkflowError:
            assert Told.by(self._ledger.entries()).of(run.id), f"nobody did anything to {run.id}"
        else:
            meddled = Told.by(self._ledger.entries()).of(run.id)
            assert meddled or result == expected(shape.name, number), f"{run.id} came to {result}"

    async def _tell(self, run: sf.Run[Any], shape: sf.Workflow[..., Any], place: int) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.05))  # they come at any moment
        if shape is listener:
            await ask(lambda: run.signal("go", place, signal_id=f"signal {place}"))
        else:
            await ask(lambda: run.update("add", place, update_id=f"update {place}", timeout=PATIENCE))

    # --- what goes wrong -----------------------------------------------------------------------------------------

    async def strike(self) -> None:
        """Kill a worker, or stop one for a while; replace those that are gone.

        One that is stopped in the middle of a commit to a file keeps all others from writing until it goes on.
        """
        await self._fill_up(WORKERS // 2)
        await asyncio.sleep(self._chance.uniform(0.05, 0.6))  # at any moment
        awake = [pid for pid in self._nursery.alive if pid in self._nursery.ready and pid not in self.stopped]
        if len(awake) > WORKERS // 2 and self._chance.random() < 0.4:
            pid = self._chance.choice(awake)
            self._nursery.stop(pid)
            self.stopped.add(pid)
            asyncio.get_running_loop().call_later(self._chance.uniform(0.1, 1.8 * LEASE), self._go_on, pid)
        elif awake:
            self._nursery.kill(self._chance.choice(awake))
        await self._nursery.spawn(WORKERS - len(self._nursery.alive), lease=LEASE)

    async def _fill_up(self, ready: int) -> None:
        """Wait until so many workers are ready; replace those that gave up because the store was kept busy."""
        deadline = monotonic() + PATIENCE
        while len(self._nursery.ready.intersection(self._nursery.alive)) < ready:
            assert monotonic() < deadline, f"workers do not get ready: {self._nursery.gone}"
            await self._nursery.spawn(WORKERS - len(self._nursery.alive), lease=LEASE)
            await asyncio.sleep(0.1)  # others are starting

    def _go_on(self, pid: int) -> None:
        if pid in self.stopped:
            self.stopped.discard(pid)
            os.kill(pid, signal.SIGCONT)

    async def calm(self) -> None:
        """Disturb nobody any more."""
        for pid in tuple(self.stopped):
            self._go_on(pid)
        await self._fill_up(WORKERS)
        self._over.set()

    # --- the end -------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Every run ends, or waits for somebody and ends when it is cancelled."""
        for patience in (SOON, SOON, PATIENCE):
            left = await self._unfinished(patience)
            for run in left:
                if run.waits_for.startswith(FOR_SOMEBODY):
                    self._ledger.write("operate", key=run.id, name="cancel")
                    with suppress(RunNotFoundError):
                        await self._engine.cancel(run.id, "nobody comes")
        left = await self._unfinished(PATIENCE)
        told = [(run.id, run.workflow, run.status, run.waits_for, run.claims) for run in left]
        assert told == [], f"these do not end: {told}"

    async def _unfinished(self, patience: float) -> list[Any]:
        statuses = ("pending", "running", "suspended", "quarantined")
        deadline = monotonic() + patience
        while True:
            page = await self._engine.list(status=statuses, limit=1_000)
            if not page.runs or monotonic() > deadline:
                return list(page.runs)
            await asyncio.sleep(0.1)  # others are at work, and a list tells nobody

    async def afresh(self) -> None:
        """What is started when all is over goes through."""
        shapes = dict.fromkeys(self._shapes)
        await asyncio.gather(*(self.one(shape, 2) for shape in shapes))

    async def nothing_is_held(self) -> None:
        """No run is owned, ready or due, and nothing is held or waited for."""
        space = self._engine.space
        kinds = [space.key(kind) for kind in ("own", "ready", "timer", "grant", "ticket", "queue")]
        async with asyncio.timeout(PATIENCE):
            while left := [key for kind in kinds for key in (await space.scan(*kind.within(), limit=3)).records]:
                await asyncio.sleep(0.1)  # others are at work
                assert len(left) < 1_000

    async def idle(self) -> dict[int, float]:
        """Return the share of a processor that each worker uses while there is nothing to do."""
        await asyncio.sleep(1)  # what was put off is done
        pids = self._nursery.alive
        before, began = {pid: processor_time(pid) for pid in pids}, monotonic()
        await asyncio.sleep(MEASURED)
        took = monotonic() - began
        return {pid: (processor_time(pid) - before[pid]) / took for pid in pids}


async def ask(call: Callable[[], Awaitable[Any]]) -> Any:
    """Ask for something, again if the store is kept busy by a worker that was stopped, as an application would."""
    while True:
        try:
            return await call()
        except (StoreBusyError, StoreUnavailableError, OutcomeUnknownError):
            await asyncio.sleep(0.05)


def processor_time(pid: int) -> float:
    """Return how many seconds of a processor a process has used, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- checks ---------------------------------------------------------------------------------------------------------


def check_untouched(entries: list[Entry], recorded: dict[tuple[str, int], str]) -> list[str]:
    """Check runs that no operator touched: as if there were none."""
    told = Told.by(entries)
    ours = [entry for entry in entries if not entry.key or not (told.of(entry.key) or BRIEF in entry.key)]
    kept = {each: record for each, record in recorded.items() if not (told.of(each[0]) or BRIEF in each[0])}
    return [*check(ours, kept).problems, *check_locks(ours)]


def check_touched(entries: list[Entry]) -> list[str]:
    """Check runs that operators touched: a step runs again because of a kill, or once for each thing that was done."""
    told, excuses = Told.by(entries), Excuses(entries)
    begun: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in in_time(entries, excuses):
        if entry.what == "begin" and told.of(entry.key):
            begun[entry.key, entry.attempt].append(entry)
    problems: list[str] = []
    for (key, attempt), runs in begun.items():
        verbs = told.of(key)
        if runs[0].name == "once" and len(runs) > 1 + verbs["retry"]:
            problems.append(f"{key} was executed {len(runs)} times, and retried {verbs['retry']} times")
        excused = sum(excuses.has(each.pid) for each in runs)
        if len(runs) > 1 + excused + verbs.total():
            problems.append(f"{key}, attempt {attempt} was executed {len(runs)} times, with {excused} and {verbs}")
    return problems


def check_fences(entries: list[Entry]) -> list[str]:
    """Check that whoever comes into the lock has a larger fence than all before, whoever was turned out of it."""
    told, last, problems = Told.by(entries), 0, list[str]()
    for entry in in_time(entries, Excuses(entries)):
        lock, _, fence = entry.name.partition("#")
        if entry.what == "begin" and lock == "till":
            number = int(fence)
            if number < last and not told.of(entry.key):
                problems.append(f"{entry.key} came with fence {number} after {last}")
            last = max(last, number)
    return problems


@asynccontextmanager
async def operating(url: str, seed: int) -> AsyncIterator[None]:
    """Have an operator in a process of its own act for the length of a block."""
    operator = await forked_exec(
        sys.executable, "-m", "tests.integration.workflows.programs.operator", url, str(seed),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert operator.stdin is not None
    assert operator.stdout is not None
    try:
        assert await operator.stdout.readline() == b"ready\n"
        yield
        operator.stdin.close()
        assert await asyncio.wait_for(operator.wait(), PATIENCE) == 0
    finally:
        if operator.returncode is None:
            operator.kill()
            await operator.wait()


async def run_operated_storm(
    engine: sf.Engine, nursery: Nursery, ledger: Ledger, url: str, *, seconds: float, seed: int
) -> str:
    """Let the storm rage for some seconds; check everything, and return what there was of it."""
    storm = OperatedStorm(engine, nursery, ledger, seed)
    await nursery.spawn_ready(WORKERS, lease=LEASE)
    clients: list[asyncio.Task[None]] = []
    try:
        async with operating(url, seed):
            clients += [asyncio.create_task(storm.client()) for _ in range(CLIENTS)]
            deadline = monotonic() + seconds
            while monotonic() < deadline and not any(client.done() for client in clients):
                await storm.strike()
        await storm.calm()
        await storm.end()
        await asyncio.wait_for(asyncio.gather(*clients), PATIENCE)
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    await storm.afresh()
    await storm.end()
    await storm.nothing_is_held()
    shares = await storm.idle()

    entries = ledger.entries()
    problems = [entry.name for entry in entries if entry.what == "problem"]
    problems += check_untouched(entries, await records_of(engine))
    problems += [*check_touched(entries), *check_fences(entries)]
    assert problems == [], problems[:5]
    assert all(share < IDLE for share in shares.values()), f"workers with nothing to do use {shares}"
    counts = Counter(entry.what for entry in entries)
    done = Counter(entry.name for entry in entries if entry.what == "operate")
    about = f"{storm.started} runs, {counts['kill']} kills, {counts['stop']} stops, {counts['command']} commands"
    return f"{about}, {dict(done)}, idle at most {max(shares.values()):.1%}"
