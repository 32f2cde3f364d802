"""The third scene: real processes on one SQLite file, one of them killed without warning."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demonstration.bank import ACCOUNTS, OPENING_BALANCE, TOTAL, Bank, read_ledger
from demonstration.screen import padded
from demonstration.worker import TASKS
from standfast.stores import Put

if TYPE_CHECKING:
    from demonstration.bank import Transfer
    from demonstration.findings import Report
    from demonstration.screen import Screen
    from standfast import Space

DEMO: Final = Path(__file__).resolve().parent.parent / "demo.py"
PATIENCE: Final = 20.0
LONGEST_PAUSE: Final = 5_000.0  # milliseconds; a commit gives up after that
LEAST_SHARE: Final = 0.25  # on a quiet machine it is nearly 1; a busy one has its own idea of who may run


async def start(role: str, **orders: object) -> asyncio.subprocess.Process:
    """Start a process of this program."""
    command = [sys.executable, str(DEMO), "--as", role, json.dumps(orders)]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def end(*processes: asyncio.subprocess.Process) -> None:
    """Wait until processes have ended; those that do not are killed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(process.wait() for process in processes))
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def enter_phase(space: Space, phase: str) -> None:
    """Let every process that waits for a phase know that it has begun."""
    key = space.key("phase")
    await space.commit(Put(key, phase.encode(), (await space.read(key)).version(key)))


@dataclass
class Member:
    """One of the processes, as far as it has told."""

    name: str
    process: asyncio.subprocess.Process
    ledger: Path
    done: int = 0
    lost_races: int = 0
    fate: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        """Take in what the process says until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            facts = json.loads(line)
            self.ready.set()
            self.done = facts.get("done", self.done)
            self.lost_races = facts.get("lost_races", self.lost_races)


class Crowd:
    """The processes, and what was seen of them from outside."""

    def __init__(self, space: Space, url: str, folder: Path, screen: Screen) -> None:
        self.space, self.bank, self._url, self._folder, self.screen = space, Bank(space), url, folder, screen
        self.members: list[Member] = []
        self._listening: list[asyncio.Task[None]] = []
        self.totals: list[int] = []
        self.began = 0.0

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.began

    async def join(self, name: str) -> Member:
        """Start one more process and wait until it is ready."""
        ledger = self._folder / f"ledger-{name}"
        process = await start("transfer", url=self._url, name=name, ledger=str(ledger))
        member = Member(name, process, ledger)
        self.members = sorted([*self.members, member], key=lambda each: each.name)
        self._listening.append(asyncio.create_task(member.listen()))
        async with asyncio.timeout(PATIENCE):
            await member.ready.wait()
        return member

    async def watch(self, seconds: float) -> None:
        """Look on for a while: draw, and add up all accounts in one snapshot each time."""
        end_at = time.monotonic() + seconds
        while time.monotonic() < end_at:
            self.totals.append(await self.bank.total())
            self.screen.draw(self.picture())
            await asyncio.sleep(0.08)

    def kill(self, member: Member) -> int:
        """Kill a process without warning; return the nanosecond at which it was done."""
        member.process.kill()
        at = time.monotonic_ns()
        member.fate = f"killed at {self.now():.1f} s (SIGKILL)"
        self.screen.note(f"{self.now():5.2f} s  process {member.process.pid} ({member.name}) is killed")
        return at

    def kill_all(self) -> None:
        """Leave no process behind when something goes wrong."""
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.process.kill()

    async def aclose(self) -> None:
        """Wait for all processes to end."""
        await end(*(member.process for member in self.members))
        await asyncio.gather(*self._listening)

    def picture(self) -> list[str]:
        """Draw a bar for each process, and what all of them came to."""
        longest = max(member.done for member in self.members) or 1
        rows = [self._row(member, longest) for member in self.members]
        done, races = (sum(getattr(member, name) for member in self.members) for name in ("done", "lost_races"))
        right = all(total == TOTAL for total in self.totals)
        sums = f"{len(self.totals)} snapshots of all {ACCOUNTS} accounts, each adding up to {TOTAL:,}"
        return [
            *rows,
            f"   {done:,} transfers; {races:,} lost races, each tried again with the record that won",
            "   " + (sums if right else self.screen.paint("a snapshot did not add up!", "red")),
        ]

    def _row(self, member: Member, longest: int) -> str:
        width = self.screen.width - 59
        bar = self.screen.glyphs.hold * round(width * member.done / longest)
        colour = "red" if "killed" in member.fate else "yellow" if member.fate else "blue"
        label = padded(f"   {member.name}  process {member.process.pid}", 23)
        return f"{label}{padded(self.screen.paint(bar, colour), width)} {member.done:7,}  {member.fate}"


@dataclass(frozen=True)
class Audit:
    """What is in the store in the end, next to what the ledgers say was promised."""

    balances: list[int]
    transfers: dict[str, Transfer]
    promised: dict[str, int]

    def adds_up(self) -> bool:
        """Tell whether the balances are exactly what the receipts come to: no update was lost or done twice."""
        expected = [OPENING_BALANCE] * ACCOUNTS
        for transfer in self.transfers.values():
            expected[transfer.source] -= transfer.amount
            expected[transfer.target] += transfer.amount
        return self.balances == expected and sum(self.balances) == TOTAL

    def missing(self) -> set[str]:
        """Return what was promised and is not there."""
        return self.promised.keys() - self.transfers.keys()

    def unannounced(self) -> set[str]:
        """Return what is there though its process did not live to write it down."""
        return self.transfers.keys() - self.promised.keys()

    def pause_after(self, killed_at: int, name: str) -> float:
        """Return the milliseconds from a kill to the next transfer that another process was promised."""
        later = [at for receipt, at in self.promised.items() if at > killed_at and not receipt.startswith(f"{name}/")]
        return (min(later) - killed_at) / 1e6 if later else float("inf")


async def audit(crowd: Crowd) -> Audit:
    """Read the store and the ledgers."""
    snapshot = await crowd.space.read(*crowd.bank.accounts)
    balances = [int(snapshot.records[key].value) for key in crowd.bank.accounts]
    transfers = {transfer.receipt: transfer for transfer in await crowd.bank.transfers()}
    promised: dict[str, int] = {}
    for member in crowd.members:
        ledger = read_ledger(member.ledger)
        member.done = len(ledger)
        promised |= ledger
    return Audit(balances, transfers, promised)


async def play_processes(space: Space, url: str, folder: Path, screen: Screen, report: Report, pace: float) -> None:
    """Four processes transfer money; one is killed, another takes its place."""
    screen.say("", screen.paint("3  Four processes move money between the same accounts, in one SQLite file", "bold"))
    crowd = Crowd(space, url, folder, screen)
    await crowd.bank.found()
    try:
        shares, killed_at = await contend(crowd, pace)
    except BaseException:
        crowd.kill_all()
        raise
    finally:
        await crowd.aclose()
    result = await audit(crowd)
    screen.keep(crowd.picture())
    judge(crowd, result, report, shares, killed_at)


async def contend(crowd: Crowd, pace: float) -> tuple[list[int], int]:
    """Let the processes contend; return what each had done before the kill, and the nanosecond of the kill."""
    await asyncio.gather(*map(crowd.join, "ABCD"))
    crowd.began = time.monotonic()
    await enter_phase(crowd.space, "go")
    async with asyncio.timeout(PATIENCE):
        while not all(member.done for member in crowd.members):
            await crowd.watch(0.1)
    before = [member.done for member in crowd.members]
    await crowd.watch(2.2 * pace)
    shares = [member.done - done for member, done in zip(crowd.members, before, strict=True)]
    killed_at = crowd.kill(crowd.members[1])
    await crowd.watch(0.6 * pace)
    newcomer = await crowd.join("E")
    newcomer.fate = f"joined at {crowd.now():.1f} s"
    crowd.screen.note(f"{crowd.now():5.2f} s  process {newcomer.process.pid} (E) joins")
    await crowd.watch(1.8 * pace)
    await enter_phase(crowd.space, "stop")
    return shares, killed_at


def judge(crowd: Crowd, result: Audit, report: Report, shares: list[int], killed_at: int) -> None:
    """Compare what is there with what was promised."""
    victim = crowd.members[1].name
    lowest = min(shares) / (statistics.mean(shares) or 1)
    pause, extra = result.pause_after(killed_at, victim), result.unannounced()
    report.figures |= {"transfers": len(result.transfers), "lowest_share": lowest, "pause_after_kill_ms": pause}
    report.add(
        "A commit happens whole or not at all, and no update is ever lost.",
        f"{len(result.transfers):,} transfers by {len(crowd.members)} processes: every balance is exactly what the "
        f"receipts come to, in all {len(crowd.totals)} snapshots.",
        kept=result.adds_up() and all(total == TOTAL for total in crowd.totals) and len(result.transfers) > 0,
    )
    report.add(
        "What was acknowledged is durable, whoever dies.",
        f"{len(result.promised):,} transfers stood in ledgers outside the store, and every one is in it.",
        kept=not result.missing() and len(result.promised) > 0,
    )
    report.add(
        "A killed process holds nobody up, and leaves nothing half done.",
        f"Another process committed {pause:.1f} ms after the kill. What the killed one had under way is there whole "
        f"({len(extra)}) or not at all ({TASKS - len(extra)}).",
        kept=pause < LONGEST_PAUSE and len(extra) <= TASKS and all(name.startswith(f"{victim}/") for name in extra),
    )
    report.add(
        "Processes take turns: none is shut out by one that is faster.",
        f"With four of them flat out, the unluckiest got {lowest:.2f} of an equal share.",
        kept=lowest >= LEAST_SHARE,
    )
