"""The fifth scene: five processes want one durable mutex; one is killed while it holds it, one sleeps too long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import standfast as sf
from demonstration.contest import Contest
from demonstration.fenced import FencedLedger
from demonstration.processes import PATIENCE
from standfast.errors import StoreBusyError
from standfast.stores import Put

if TYPE_CHECKING:
    from pathlib import Path

    from demonstration.contest import Contender
    from demonstration.findings import Report
    from demonstration.screen import Screen
    from standfast import Space

UNTIL_STOPPED: Final = 20.0  # seconds; longer than the scene takes
AT_ONCE: Final = 1.0  # seconds; it is about 0.05 if the machine has time
SLACK: Final = 1.0  # seconds on top of the lease, on a machine with its hands full


async def play_takeover(space: Space, url: str, folder: Path, screen: Screen, report: Report, pace: float) -> None:
    """Five processes want one durable mutex."""
    screen.say("", screen.paint("5  Five processes want one durable mutex; one is killed, one sleeps too long", "bold"))
    path = str(folder / "ledger.db")
    async with sf.open(f"{url}?busy=100ms", namespace="demo") as probe:
        with FencedLedger(path) as ledger:
            contest = Contest(space, probe, url, path, ledger, screen, pace, lease=max(1.0, 1.5 * pace))
            try:
                await perform(contest, report)
            except BaseException:
                contest.kill_all()
                raise
            finally:
                await contest.aclose()
            screen.keep(contest.picture({}))
            judge(contest, report)


async def perform(contest: Contest, report: Report) -> None:
    """Play the scene, and measure how soon the next takes over."""
    await asyncio.gather(
        *(contest.join(name, UNTIL_STOPPED) for name in "PQ"),
        *(contest.join(name, 0.6 * contest.pace) for name in "RST"),
    )
    contest.begin()
    first, second, third, *others = contest.contenders
    drawing = asyncio.create_task(contest.watch())
    try:
        await contest.ask(first)
        await contest.holds(first)
        for contender in (second, third, *others):
            await contest.ask(contender)
        await asyncio.sleep(0.3 * contest.pace)
        report.figures["takeover_after_kill_ms"] = 1000 * await kill(contest, first, second)
        await asyncio.sleep(0.4 * contest.pace)
        report.figures["takeover_after_stop_s"] = await put_to_sleep(contest, second, third)
        await third.says("left")
        for contender in others:
            await contest.holds(contender)
            await contender.says("left")
    finally:
        drawing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drawing


async def kill(contest: Contest, holder: Contender, following: Contender) -> float:
    """Kill the holder; return the seconds until the next one held the mutex. Then something of the dead arrives."""
    killed_at = time.monotonic()
    holder.process.kill()
    holder.track.left, holder.track.colour = killed_at - contest.timeline.began, "red"
    holder.track.fate = "killed"
    contest.tell(f"process {holder.process.pid} ({holder.name}) is killed while it holds the mutex")
    await contest.holds(following)
    if not contest.ledger.write(holder.name, holder.fence):
        contest.refuse(holder)
        contest.tell(f"a write that {holder.name} had sent arrives late, with fence {contest.short(holder)}: refused")
    return following.facts["entered"] - killed_at


async def put_to_sleep(contest: Contest, holder: Contender, following: Contender) -> float:
    """Stop the holder until another one has the mutex, and wake it; return the seconds until that was so."""
    stopped_at = await stop_between_writes(contest, holder)
    holder.track.colour, holder.track.fate = "yellow", "stopped"
    contest.tell(f"process {holder.process.pid} ({holder.name}) is stopped while it holds the mutex")
    await contest.holds(following)
    holder.track.left = following.track.entered
    await asyncio.sleep(0.2 * contest.pace)
    holder.process.send_signal(signal.SIGCONT)
    await holder.says("lost")
    holder.track.fate = "refused" if "refused" in holder.facts else "not refused!"
    if "refused" in holder.facts:
        contest.refuse(holder)
        contest.tell(f"{holder.name} wakes up and writes on, with fence {contest.short(holder)}: refused")
    return following.facts["entered"] - stopped_at


async def has_stopped(pid: int) -> None:
    """Wait until every thread of a process stands still: one that is in the kernel may still take a lock on its way."""
    if not hasattr(os, "waitid"):
        await asyncio.sleep(0.02)
        return
    async with asyncio.timeout(PATIENCE):
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is None:  # noqa: ASYNC110, ASYNC222 -- it does not block
            await asyncio.sleep(0.002)


async def stop_between_writes(contest: Contest, contender: Contender) -> float:
    """Stop a process where it is in nobody's way, neither in the store nor in the ledger; return when that was."""
    key = contest.space.key("probe")
    while True:
        stopped_at = time.monotonic()
        contender.process.send_signal(signal.SIGSTOP)
        await has_stopped(contender.process.pid)
        with contextlib.suppress(StoreBusyError):
            await contest.probe.commit(Put(key, b"", (await contest.probe.read(key)).version(key)))
            if contest.ledger.is_free():
                return stopped_at
        contender.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.01)


def judge(contest: Contest, report: Report) -> None:
    """Compare what happened with what was promised."""
    killed, slept, third, *_ = contest.contenders
    after_kill, after_stop = report.figures["takeover_after_kill_ms"], report.figures["takeover_after_stop_s"]
    entries = contest.ledger.entries()
    fences = [fence for _, fence in entries]
    came = list(dict.fromkeys(name for name, _ in entries))
    in_turn = all(before.fence < after.fence for before, after in pairwise(contest.contenders))
    sees_deaths = contest.space.store.capabilities.sees_process_death  # if not, the lease has to lapse
    soon = AT_ONCE if sees_deaths else contest.lease + SLACK
    report.add(
        "A durable lock outlives its holder: the next in line has it at once.",
        f"{killed.name} was killed with -9 while it held the mutex. {slept.name} had it {after_kill:.0f} ms later, "
        f"with a higher fence, and all five came in in the order they asked.",
        kept=after_kill < 1000 * soon and in_turn and came == [each.name for each in contest.contenders],
    )
    report.add(
        "A process that is not heard of for a whole lease makes way.",
        f"{slept.name} was stopped while it held the mutex with a lease of {contest.lease:g} s. {third.name} had it "
        f"{after_stop:.2f} s later, with a higher fence; waking up, {slept.name} got LeaseLostError.",
        kept=after_stop < contest.lease + SLACK and "lost" in slept.facts,
    )
    report.add(
        "Whoever has lost a lock cannot write any more.",
        f"A late write of {killed.name} and the next one of {slept.name} had fences below the highest that the ledger "
        f"had seen. It refused both; its {len(entries)} entries have fences that never go down.",
        kept=len(contest.refused) == 2 and "refused" in slept.facts and fences == sorted(fences),  # noqa: PLR2004 -- both of them
    )
