"""The fourth scene: one process commits, another one wakes up."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from demonstration.processes import end, enter_phase, start
from demonstration.screen import padded

if TYPE_CHECKING:
    from demonstration.findings import Report
    from demonstration.screen import Screen
    from standfast import Space

SHOWN: Final = 40
LONGEST: Final = 5.0  # seconds
FEWEST: Final = 20
SOON: Final = 50.0  # milliseconds; even a machine with its hands full should not take longer
TOP: Final = 1.0  # milliseconds at which a step of the picture is full


def percentile(latencies: list[float], percent: int) -> float:
    """Return a percentile of some latencies."""
    ordered = sorted(latencies)
    return ordered[len(ordered) * percent // 100]


def picture(latencies: list[float], times: int, screen: Screen) -> list[str]:
    """Draw the last latencies as steps."""
    steps = screen.glyphs.steps
    heights = [steps[min(len(steps) - 1, int(latency / TOP * len(steps)))] for latency in latencies[-SHOWN:]]
    typical = f"typically {percentile(latencies, 50):.2f} ms" if latencies else ""
    chart = padded(screen.paint("".join(heights), "cyan"), SHOWN)
    return [f"   {chart}  {len(latencies)} of {times} heard, {typical}"]


async def play_hints(space: Space, url: str, screen: Screen, report: Report, pace: float) -> None:
    """Listen to another process, and measure from its asking for a commit to our waking up."""
    times = round(200 * pace)
    screen.say("", screen.paint("4  One process commits, another one wakes up", "bold"))
    key, latencies = space.key("bell"), list[float]()
    process = await start("ring", url=url, times=times)
    try:
        async with space.watch(key) as watch:
            await enter_phase(space, "ring")
            end_at = time.monotonic() + LONGEST
            while len(latencies) < times and time.monotonic() < end_at and await watch.wait(timeout=5) is not None:
                record = (await space.read(key)).get(key)  # by now perhaps a newer one, so the clock is read after it
                latencies.append((time.monotonic_ns() - int(record.value)) / 1e6 if record else 0.0)
                screen.draw(picture(latencies, times, screen))
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            process.kill()
        await end(process)
    screen.keep(picture(latencies, times, screen))
    judge(latencies, report)


def judge(latencies: list[float], report: Report) -> None:
    """Say how soon hints arrived."""
    p50, p99 = (percentile(latencies, percent) if latencies else float("inf") for percent in (50, 99))
    report.figures |= {"hint_p50_ms": p50, "hint_p99_ms": p99}
    report.add(
        "A waiting process is woken by a hint; it does not poll.",
        f"From commit() in one process to wake-up in the other, durable write included: half of them within "
        f"{p50:.2f} ms, 99 % within {p99:.1f} ms.",
        kept=p50 < SOON and len(latencies) >= FEWEST,
    )
