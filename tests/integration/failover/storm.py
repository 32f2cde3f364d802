"""A storm: locks, counters and workflows at work while the primary is lost; all is compared with ledgers outside.

The ledgers are lists of this process: what was acknowledged, who was inside of the lock with which fence, which effect
ran how often. ``python -m tests.integration.failover.storm`` runs one of each and writes the table of
``docs/how-to/survive-a-failover.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

import standfast as sf
from standfast.errors import StandfastError
from standfast.stores.url import open_store
from tests.integration.faults.program import Ledger
from tests.services import replicated
from tests.services.replicated import Group

if TYPE_CHECKING:
    from standfast.stores import GroupedStore

LEASE: Final = 3.0
PATIENCE: Final = 60.0


# --- set-ups that promise to lose nothing, and what happens to their primaries ---------------------------------------


class SetUp(Struct, frozen=True):
    """Replicated servers, the options of the URL that the promise needs."""

    name: str
    make: Callable[[], AbstractContextManager[Group]]
    options: str
    relayed: Callable[[], AbstractContextManager[Group]] | None = None
    """With a relay before each member, for those that else find each other, and cannot be cut off."""


SET_UPS: Final = {
    each.name: each
    for each in [
        SetUp("PostgreSQL, synchronous standby", replicated.postgresql, "?timeout=2s"),
        SetUp("PostgreSQL behind HAProxy", partial(replicated.postgresql, front="haproxy"), "?timeout=2s"),
        SetUp("PostgreSQL behind pgbouncer", partial(replicated.postgresql, front="pgbouncer"), "&timeout=2s"),
        SetUp("Valkey, two replicas, replicas=1", replicated.valkey, "?timeout=2s&replicas=1"),
        SetUp("Valkey, three sentinels, replicas=1", replicated.sentinels, "?timeout=2s&replicas=1"),
        SetUp(
            "Valkey, three sentinels, replicas=2",
            replicated.sentinels,
            "?timeout=2s&replicas=2",
            partial(replicated.sentinels, relayed=True),
        ),
        SetUp(
            "Valkey, cluster of three and three, replicas=1",
            replicated.cluster,
            "?timeout=2s&replicas=1",
            partial(replicated.cluster, relayed=True),
        ),
        SetUp("MariaDB, semi-synchronous", replicated.mariadb, "?timeout=2s"),
        SetUp("MongoDB, set of three", replicated.mongodb, "&timeout=2s"),
        SetUp("etcd, three members", replicated.etcd, "?timeout=2s&shortest_lease=2s"),
    ]
}


def kill(servers: Group) -> None:
    """Kill the primary, and let a follower take over."""
    servers.primary.kill()
    servers.take_over()


def freeze(servers: Group) -> None:
    """Stop the primary with all connections left open, let a follower take over, and let the old one go on."""
    old = servers.primary
    old.stop()
    servers.take_over()
    old.cont()


def part(servers: Group) -> None:
    """Cut the primary off from its followers and its clients, and let a follower take over.

    Where that one needs the old primary to go on, it is reached again then, and gets what was held.
    """
    servers.part()
    servers.take_over()
    servers.rejoin()


def part_from_followers(servers: Group) -> None:
    """Cut the primary off from all others but the clients, which reach it and its successor; then let it come back."""
    assert isinstance(servers, (replicated.SentinelGroup, replicated.ClusterGroup))
    servers.part(clients=False)
    servers.take_over()
    servers.rejoin()


def mute(servers: Group) -> None:
    """Let the primary hear everything and be heard by none, and let a follower take over."""
    servers.mute()
    servers.take_over()


def step_down(servers: Group) -> None:
    """Shut the primary down in good order, or let it step down, and let a follower take over."""
    servers.step_down()


def come_back(servers: Group) -> None:
    """Kill the primary, let a follower take over, and start the old one again on the data that it had."""
    old = servers.primary
    kill(servers)
    old.restart()


def restart_all(servers: Group) -> None:
    """Restart all of them in turn, the primary last; none takes over unless they elect one."""
    servers.restart_all()


FAULTS: Final = {
    "killed": kill,
    "frozen, connections left open": freeze,
    "cut off": part,
    "cut off, but not from clients": part_from_followers,
    "heard by none": mute,
    "stepped down": step_down,
    "killed, and comes back": come_back,
    "restarted, after its followers": restart_all,
}


TRIED: Final = {
    "Valkey, three sentinels, replicas=1": {"killed"},
    "Valkey, three sentinels, replicas=2": set(FAULTS) - {"killed"},
    "Valkey, cluster of three and three, replicas=1": set(FAULTS) - {"killed"},
}
"""Which faults, if not all. Where a commit waits for all replicas, the next primary acknowledges nothing before the old
one is back; where it waits for one of two, a primary that lives may acknowledge what is lost while the other takes
over."""

ONE_LINE: Final = "MongoDB, set of three"
"""Whose members have one line each that all answers come by. "Cut off" is the reverse there: it hears none."""

STORMS: Final = [
    (set_up, fault)
    for set_up in SET_UPS
    for fault in FAULTS
    if fault in TRIED.get(set_up, FAULTS)
    and (fault != "heard by none" or set_up == ONE_LINE)
    and (FAULTS[fault] is not part_from_followers or SET_UPS[set_up].relayed)
]


# --- what is at work -------------------------------------------------------------------------------------------------


class Measured(Struct):
    """What a storm came to."""

    commit: float = 0.0
    """Seconds from the new primary's taking over until a commit of an old handle was acknowledged."""
    lock: float = 0.0
    run: float = 0.0
    acknowledged: int = 0
    holds: int = 0
    runs: int = 0
    share: float = 0.0
    """How much of a core this process used while there was no primary."""
    effects: Counter[str] = field(default_factory=Counter)


class Storm:
    """Programs that use one store, and their ledgers."""

    def __init__(self, url: str) -> None:
        self.url, self.ledger, self.over = url, Ledger(), asyncio.Event()
        self.fences: list[int] = []
        self.inside = self.most_inside = self.interrupted = 0
        self.effects: Counter[str] = Counter()
        self.ended: list[str] = []
        self.started: list[str] = []
        self.told: set[type[StandfastError]] = set()

    async def write(self, store: GroupedStore, name: str) -> None:
        """Create records and count, without pause."""
        number = 0
        while not self.over.is_set():
            await self.ledger.create(store, f"{name}-{number}")
            await self.ledger.count(store)
            await asyncio.sleep(0.005)
            number += 1

    async def hold(self, space: sf.Space) -> None:
        """Ask for the lock again and again, and note the fence inside."""
        while not self.over.is_set():
            try:
                async with space.mutex("storm").hold(timeout=10) as hold:
                    self.inside += 1
                    try:
                        self.most_inside = max(self.most_inside, self.inside)
                        self.fences.append(hold.fence)
                        await asyncio.sleep(0.002)
                    finally:
                        self.inside -= 1
            except StandfastError as error:  # whatever became of it, it is asked for again
                self.told.add(type(error))
            await asyncio.sleep(0.005)

    async def start_runs(self, engine: sf.Engine, workflow: Any) -> None:
        """Start runs, and wait for the end of each."""
        while not self.over.is_set():
            name = f"{self.ledger.namespace}-{len(self.started)}"
            self.started.append(name)
            await self.insist(partial(engine.start, workflow, name, id=name))
            await self.insist(partial(engine.run(name).result, timeout=PATIENCE))
            self.ended.append(name)

    async def insist(self, action: Callable[[], Any]) -> None:
        """Do something until the store lets it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                await action()
            except sf.errors.WorkflowAlreadyExistsError:
                return
            except sf.errors.RunFailedError as failed:
                if not isinstance(failed.__cause__, sf.errors.StepInterruptedError):
                    raise
                self.interrupted += 1  # the step that runs at most once had begun, and was not recorded
                return
            except sf.errors.StoreError:
                assert time.monotonic() < deadline, "the store never came back"
                await asyncio.sleep(0.02)
            else:
                return

    def workflow(self) -> Any:
        """Return a workflow of three effects, the second of them at most once."""

        async def first(name: str) -> None:
            self.effects[f"first {name}"] += 1

        @sf.step(semantics="at_most_once")
        async def once(name: str) -> None:
            self.effects[f"once {name}"] += 1

        async def last(name: str) -> None:
            self.effects[f"last {name}"] += 1

        @sf.workflow
        async def effects(ctx: sf.Context, name: str) -> None:
            await ctx.step(first, name)
            await ctx.step(once, name)
            await ctx.step(last, name)

        return effects


async def run_storm(set_up: SetUp, fault: Callable[[Group], None]) -> Measured:
    """Run one storm, compare everything, and return how soon work went on."""
    with (set_up.relayed or set_up.make if fault in {part, part_from_followers} else set_up.make)() as servers:
        storm = Storm(f"{servers.url}{set_up.options}")
        servers.aim(storm.ledger.namespace)
        stores = [await open_store(storm.url) for _ in range(2)]
        spaces = [await sf.open(storm.url, namespace=storm.ledger.namespace, lease=LEASE) for _ in range(2)]
        workflow = storm.workflow()
        engine = sf.Engine(storm.url, workflows=[workflow], namespace=storm.ledger.namespace, lease=LEASE)
        async with contextlib.AsyncExitStack() as stack:
            for close in [*(store.aclose for store in stores), *(space.aclose for space in spaces)]:
                stack.push_async_callback(close)
            await stack.enter_async_context(engine)
            programs = [storm.write(store, str(number)) for number, store in enumerate(stores)]
            programs += [storm.hold(space) for space in spaces]
            programs.append(storm.start_runs(engine, workflow))
            tasks = [asyncio.create_task(program) for program in programs]
            stack.callback(lambda: [task.cancel() for task in tasks])
            await until(lambda: storm.ledger.counted > 20 and len(storm.fences) > 10 and len(storm.ended) > 2, tasks)
            used, began = time.process_time(), time.monotonic()
            await asyncio.to_thread(fault, servers)
            share = (time.process_time() - used) / (time.monotonic() - began)
            measured = await resumed(storm, tasks)
            measured.share = share
            storm.over.set()
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            check(storm)
        direct = await open_store(storm.url)
        try:
            await storm.ledger.compare(direct)
        finally:
            await direct.aclose()
        measured.acknowledged = storm.ledger.counted + len(storm.ledger.created)
        measured.holds, measured.runs, measured.effects = len(storm.fences), len(storm.ended), storm.effects
        return measured


async def resumed(storm: Storm, tasks: list[asyncio.Task[Any]]) -> Measured:
    """Wait until each kind of work went on; return after how many seconds each did."""
    began = time.monotonic()
    counted, holds, ended = storm.ledger.counted, len(storm.fences), len(storm.ended)
    measured = Measured()
    waits: dict[str, Callable[[], bool]] = {
        "commit": lambda: storm.ledger.counted > counted,
        "lock": lambda: len(storm.fences) > holds + 1,
        "run": lambda: len(storm.ended) > ended + 1,
    }
    while waits:
        for name in [name for name, is_on in waits.items() if is_on()]:
            setattr(measured, name, time.monotonic() - began)
            del waits[name]
        await until(lambda: any(is_on() for is_on in waits.values()) or not waits, tasks)
    return measured


async def until(reached: Callable[[], bool], tasks: list[asyncio.Task[Any]]) -> None:
    """Wait until the ledgers show something; a program that failed is told at once."""
    async with asyncio.timeout(PATIENCE):
        while not reached():
            for task in tasks:
                if task.done():
                    await task
            await asyncio.sleep(0.002)


def check(storm: Storm) -> None:
    """Compare the ledgers: one holder at a time, fences that grow, every run ended, and no at-most-once step twice."""
    assert storm.most_inside == 1
    mistaken = {sf.errors.LeaseTooShortError, sf.errors.ReentryError}  # a failover is neither
    assert not storm.told & mistaken, storm.told
    assert storm.fences == sorted(set(storm.fences))
    assert storm.ended == storm.started
    for name in storm.started:
        assert storm.effects[f"once {name}"] <= 1
        assert storm.effects[f"first {name}"] >= 1
    unfinished = [name for name in storm.started if not storm.effects[f"last {name}"]]
    assert len(unfinished) == storm.interrupted


# --- the table -------------------------------------------------------------------------------------------------------

PAGE: Final = Path("docs/how-to/survive-a-failover.md")
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def row(set_up: str, fault: str, told: Measured) -> str:
    """Return a row of the table. What was promised was compared before: a storm that does not keep it fails."""
    again = sum(number - 1 for number in told.effects.values() if number > 1)
    times = f"{told.commit:.1f} s | {told.lock:.1f} s | {told.run:.1f} s"
    kept = f"0 of {told.acknowledged:,} lost | 1 holder in {told.holds:,} | {told.runs:,} ended"
    return f"| {set_up} | {fault} | {kept} | {times} | {again} |"


def main() -> int:
    """Run one storm of each, or those that the arguments name a part of, and write the table."""
    logging.disable()  # of hundreds of lines about servers that are away
    chosen = [each for each in STORMS if all(part in " ".join(each) for part in sys.argv[1:])]
    rows, failed, began = list[str](), list[str](), time.monotonic()
    for number, (set_up, fault) in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {set_up}: {fault} ...", end=" ", flush=True)
        since = time.monotonic()
        try:
            measured = asyncio.run(run_storm(SET_UPS[set_up], FAULTS[fault]))
        except Exception:  # noqa: BLE001 -- the others are tried all the same
            failed.append(f"{set_up}: {fault}")
            print(f"FAILED after {time.monotonic() - since:.0f} s", traceback.format_exc(), sep="\n", flush=True)
            continue
        rows.append(row(set_up, fault, measured))
        print(f"commit {measured.commit:.1f} s, {time.monotonic() - since:.0f} s in all", flush=True)
    print(*table(rows), f"{len(rows)} storms in {time.monotonic() - began:.0f} s", sep="\n")
    print(*(f"FAILED {each}" for each in failed), sep="\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    known, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}" + "\n".join(table(merged(known, rows))) + f"\n{END}{after}")
    return bool(failed)


def merged(page: str, rows: list[str]) -> list[str]:
    """Return the rows of the page with new ones in place of those of the same storm, in the order of the storms.

    So a storm that failed, or some that were left out, keep what was measured before, and can be run by themselves.
    """
    known = {tuple(line.split(" | ")[:2]): line for line in [*page.splitlines(), *rows] if line.startswith("| ")}
    wanted = [(f"| {set_up}", fault) for set_up, fault in STORMS]
    return [known[each] for each in wanted if each in known]


def table(rows: list[str]) -> list[str]:
    """Return the table as it stands on the page."""
    day, machine = time.strftime("%Y-%m-%d"), f"{platform.system()} {platform.machine()}"
    promises = "acknowledged commits | the lock | runs"
    return [
        f"Measured on {day} on loopback ({machine}, {os.cpu_count()} cores), a lease of {LEASE:g} s:",
        "",
        f"| set-up | the primary is | {promises} | commit after | lock after | run after | effects again |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
