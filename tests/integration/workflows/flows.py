"""Workflows of several shapes whose steps write to the ledger, and the engine of the workers that drive them."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.errors import LeaseLostError, StepInterruptedError
from tests.integration.workflows.ledger import Ledger
from tests.integration.workflows.payments import paying

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.events import Event

LEDGER = "STANDFAST_TEST_LEDGER"
INTERRUPTED = "interrupted"
_ledgers: dict[str, Ledger] = {}


def ledger() -> Ledger:
    """Return the ledger of this process."""
    path = os.environ[LEDGER]
    if path not in _ledgers:
        _ledgers[path] = Ledger(path)
    return _ledgers[path]


@sf.step
async def work(_label: str = "") -> str:
    """Do something that takes a moment."""
    nonce = ledger().begin()
    await asyncio.sleep(random.uniform(0, 0.01))
    return ledger().end(nonce)


@sf.step
def plain_work() -> str:
    """Do something in a thread."""
    nonce = ledger().begin()
    threading.Event().wait(random.uniform(0, 0.01))
    return ledger().end(nonce)


@sf.step(retry=sf.Retry(attempts=3, delay=0.02))
async def shaky_work() -> str:
    """Raise the first two times."""
    nonce = ledger().begin()
    await asyncio.sleep(random.uniform(0, 0.005))
    ledger().end(nonce)
    if sf.current_step().attempt < 3:
        raise ConnectionError(nonce)
    return nonce


@sf.step(semantics="at_most_once")
async def work_once() -> str:
    """Do something that must not be done twice."""
    nonce = ledger().begin("once")
    await asyncio.sleep(random.uniform(0, 0.01))
    return ledger().end(nonce)


@sf.step
async def locked_work(lock: str, fence: int) -> str:
    """Do something that no two runs may do at the same time."""
    nonce = ledger().begin(f"{lock}#{fence}")
    await asyncio.sleep(random.uniform(0, 0.005))
    return ledger().end(nonce)


@sf.step
async def brief_work() -> str:
    """Do something under a lock that may be over before it is recorded, and then never is."""
    nonce = ledger().begin()
    await asyncio.sleep(random.uniform(0, 0.005))
    return ledger().end(nonce)


@sf.step
async def queued_work(place: str) -> str:
    """Do something in turn."""
    nonce = ledger().begin(place)
    await asyncio.sleep(random.uniform(0, 0.005))
    return ledger().end(nonce)


@sf.step
async def parked(gate: str) -> str:
    """Stay until a file is there."""
    nonce = ledger().begin()
    while not Path(gate).exists():  # noqa: ASYNC110 -- another process opens it
        await asyncio.sleep(0.005)
    return ledger().end(nonce)


@sf.step
async def deadly(antidote: str) -> str:
    """Kill the worker, as a segmentation fault would, unless a file is there."""
    nonce = ledger().begin()
    if not Path(antidote).exists():
        os._exit(7)
    return ledger().end(nonce)


@sf.workflow
async def in_a_row(ctx: sf.Context, number: int) -> int:
    """Steps one after another, in threads too."""
    for _ in range(number):
        await ctx.step(work)
        await ctx.step(plain_work)
    return number


@sf.workflow
async def side_by_side(ctx: sf.Context, number: int) -> int:
    """Branches of several steps each."""

    async def branch(place: int) -> int:
        await ctx.step(work)
        await ctx.step(plain_work)
        return place

    places: list[int] = await ctx.gather(*(branch(place) for place in range(number)))
    return sum(places)


@sf.workflow
async def parent(ctx: sf.Context, number: int) -> int:
    """Children, one after another and side by side."""
    await ctx.step(work)
    first = await ctx.child(in_a_row, number)
    rest: list[int] = await ctx.gather(ctx.child(in_a_row, 1), ctx.child(side_by_side, 2))
    await ctx.step(work)
    return first + sum(rest)


@sf.workflow
async def listener(ctx: sf.Context, number: int) -> list[int]:
    """Signals with steps between them."""
    heard: list[int] = []
    for _ in range(number):
        heard.append(await ctx.wait_signal("go"))
        await ctx.step(work)
    return heard


@sf.workflow
async def sleeper(ctx: sf.Context, number: int) -> int:
    """Sleeps, shorter and longer than a run stays in memory, with steps between them."""
    for place in range(number):
        await ctx.step(work)
        await ctx.sleep((0.02, 0.5)[place % 2])
    await ctx.step(work)
    return number


@sf.workflow
async def naps(ctx: sf.Context, seconds: float) -> float:
    """One sleep, and nothing else."""
    await ctx.sleep(seconds)
    return seconds


@sf.workflow
async def careful(ctx: sf.Context, number: int) -> int:
    """At-most-once steps; one that was interrupted is told, and the run goes on."""
    interrupted = 0
    for _ in range(number):
        try:
            await ctx.step(work_once)
        except StepInterruptedError:
            interrupted += 1
            await ctx.step(INTERRUPTED + str(interrupted), work)
    return number


@sf.workflow
async def shaky(ctx: sf.Context, number: int) -> int:
    """Steps that raise before they succeed."""
    for _ in range(number):
        await ctx.step(shaky_work)
    return number


@sf.workflow
async def racer(ctx: sf.Context, number: int) -> int:
    """A race that a sleep wins, with a step that is always cancelled."""
    for _ in range(number):
        place, _value = await ctx.race(ctx.sleep(0.05), ctx.wait_signal("never"))
        assert place == 0
        await ctx.step(work)
    return number


@sf.workflow
async def locker(ctx: sf.Context, number: int) -> int:
    """Steps under a lock that other runs want too, and a sleep while it is held."""
    for _ in range(number):
        async with ctx.mutex("till") as hold:
            await ctx.step(locked_work, "till", hold.fence)
            await ctx.sleep(0.01)
            await ctx.step(locked_work, "till", hold.fence)
    return number


@sf.workflow
async def holder(ctx: sf.Context, number: int) -> int:
    """Locks of every other kind, one of which may be held for a short time only."""
    for _ in range(number):
        async with ctx.semaphore("pool", permits=3, weight=2):
            await ctx.step(work)
            await ctx.sleep(0.02)
        async with ctx.mode_lock("page", "read", modes=("read", "write"), alone=("write",)):
            await ctx.step(work)
        async with ctx.mode_lock("page", "write", modes=("read", "write"), alone=("write",)):
            await ctx.sleep(0.02)
        with suppress(LeaseLostError):
            async with ctx.mutex("short", max_hold=0.3):
                await ctx.step(brief_work)
                await ctx.sleep(0.05)
    return number


@sf.workflow(concurrency=sf.Limit(1, key=lambda lane, number: lane, on_limit="queue"))  # noqa: ARG005 -- it gets all
async def queued(ctx: sf.Context, lane: str, number: int) -> int:
    """Two steps, one run of each lane at a time."""
    await ctx.step("first", queued_work, f"{lane} {number}")
    await ctx.step("last", queued_work, f"{lane} {number}")
    return number


@sf.workflow
async def payer(ctx: sf.Context, number: int) -> list[int]:
    """Transactions in the store's own database, between steps."""
    paid: list[int] = []
    for place in range(number):
        paid.append(await ctx.transaction(paying(), f"{ctx.run_id} {place}"))
        await ctx.step(work)
    return paid


@sf.workflow
async def chain(ctx: sf.Context, number: int, done: int = 0) -> int:
    """Runs that go on as new ones."""
    await ctx.step(work)
    if number > 1:
        await ctx.continue_as_new(number - 1, done + 1)
    return done + 1


@sf.workflow
async def adder(ctx: sf.Context, number: int) -> list[int]:
    """Updates, answered as they come."""
    added: list[int] = []

    def add(value: int) -> int:
        added.append(value)
        return len(added)

    ctx.on_update("add", add)
    await ctx.wait_until(lambda: len(added) == number)
    await ctx.step(work)
    return added


@sf.workflow
async def waits_at_the_gate(ctx: sf.Context, gate: str) -> str:
    """A step that stays until a file is there, and one after it."""
    await ctx.step(parked, gate)
    await ctx.step(work)
    return "through"


@sf.workflow
async def kills_its_worker(ctx: sf.Context, antidote: str) -> str:
    """A step that kills its worker."""
    await ctx.step(work)
    await ctx.step(deadly, antidote)
    return "survived"


@sf.workflow(name="changing", version="1")
async def changing_1(ctx: sf.Context) -> str:
    """The old code of a workflow that changes."""
    await ctx.step(work)
    await ctx.wait_signal("go")
    await ctx.step(work)
    return "old"


@sf.workflow(name="changing", version="2")
async def changing_2(ctx: sf.Context) -> str:
    """The new code of it."""
    await ctx.wait_signal("go")
    return "new"


@sf.step
async def where() -> int:
    """Take 10 to 50 ms; return which process did."""
    await asyncio.sleep(random.uniform(0.01, 0.05))
    return os.getpid()


@sf.workflow
async def spread(ctx: sf.Context) -> list[int]:
    """Take four steps; return which processes did."""
    return [await ctx.step(where) for _ in range(4)]


WORKFLOWS = {
    f"{each.name}{each.version}": each
    for each in (
        in_a_row, side_by_side, parent, listener, sleeper, careful, shaky, racer, locker, payer, chain, adder,
        naps, queued, holder, waits_at_the_gate, kills_its_worker, changing_1, changing_2, spread,
    )
}  # fmt: skip
LOCKS = ("till", "till", "till", "pool", "page", "short")
"""What runs lock, by how often an operator looks at it."""

SHAPES = (
    in_a_row, side_by_side, parent, listener, sleeper, careful, shaky, racer, locker, payer, chain, adder,
)  # fmt: skip


def told(event: Event) -> None:
    """Write the events that tests ask about to the ledger."""
    if type(event).__name__ not in ("StepRecorded", "RunMoved"):
        ledger().write("event", key=str(getattr(event, "run", "")), name=type(event).__name__)


def make_engine(names: Iterable[str] = (), *, quarantine_after: int = 5, **options: Any) -> sf.Engine:
    """Return an engine on the store of the test, with all workflows or some of them."""
    chosen = [WORKFLOWS[name] for name in names or WORKFLOWS]
    worker = sf.admin.WorkerLimits(quarantine_after=quarantine_after)
    return sf.Engine(os.environ["STANDFAST_STORE"], workflows=chosen, worker=worker, hooks=[told], **options)


def engine() -> sf.Engine:
    """Return the engine for ``standfast worker``, as the environment says."""
    names = [name for name in os.environ.get("STANDFAST_TEST_WORKFLOWS", "").split(",") if name]
    return make_engine(names, quarantine_after=int(os.environ.get("STANDFAST_TEST_DEATHS", "5")))
