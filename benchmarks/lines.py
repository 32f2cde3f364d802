"""Lines: a mutex, a semaphore, and a bare mutex on the store's own operations, contended by 2, 8 and 20 processes.

What is counted is not noise: writes, refused writes and reads a hold. Times are those of a machine that does all of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from benchmarks._line_contender import SHARED
from benchmarks.growth import table
from benchmarks.harness import ROOT, machine_facts, write_section
from standfast.ids import new_id
from tests import services

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVERS: Final = {"postgresql": "PostgreSQL", "redis": "Valkey"}
CROWDS: Final = (1, 2, 8, 20)
SECONDS: Final = float(os.environ.get("STANDFAST_BENCH_SECONDS", "3"))
HOLDS: Final = (0.0, 0.002)
PROGRAMS: Final = {
    "": ("_mutex_contender",),
    ", semaphore of 3": ("_mutex_contender", "3"),
    ", semaphore of 100": ("_mutex_contender", "100"),
    ", bare": ("_line_contender",),
}
MOST_WRITES, MOST_REFUSED, MOST_READS = 2.05, 0.05, 0.1

NOTES: Final = """\
Processes that ask for one lock, hold it for 0 or 2 ms, let go and ask again at once: `space.mutex`, a `space.semaphore`
of 3 permits or of 100, and *bare*, a mutex by `store.choose` alone, without a presence, a line or a lock object.
*Writes*, *refused* and *reads* are what the store is asked for each hold, all ways counted. Of the bare one also:
*found free*, how many of a hundred holds did not wait, and hand-overs, from the call that lets go to the task that
goes on."""


def contest(url: str, program: Sequence[str], processes: int, hold: float, folder: Path) -> dict[str, Any]:
    """Let processes contend, and return what they report together."""
    shared, line = folder / new_id(), new_id()
    shared.write_bytes(bytes(SHARED.size))
    module, *more = program
    command = [sys.executable, "-m", f"benchmarks.{module}", url, line, str(shared), str(SECONDS), str(hold), *more]
    pipe = subprocess.PIPE
    crowd = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
    for each in crowd:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    begin = time.monotonic() + 0.2
    for each in crowd:
        assert each.stdin is not None
        each.stdin.write(f"{begin}\n")
        each.stdin.flush()
    reports = [json.loads(each.communicate()[0]) for each in crowd]
    total = {name: sum(report[name] for report in reports) for name in reports[0] if name != "handovers"}
    return total | {"handovers": sorted(each for report in reports for each in report["handovers"])}


def row(server: str, processes: int, hold: float, seen: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    holds, handovers = seen["holds"], seen["handovers"]
    quantiles = statistics.quantiles(handovers, n=10) if len(handovers) > 1 else [0.0] * 9
    return [
        server,
        f"{processes}",
        f"{hold * 1000:g} ms",
        f"{holds / SECONDS:,.0f}",
        *(f"{seen[name] / holds:.3f}" for name in ("choices", "refused", "reads")),
        f"{quantiles[4]:.2f} / {quantiles[8]:.2f}",
        f"{100 * seen['again'] / holds:.0f}",
        f"{1000 * seen['cpu'] / holds:.2f}",
    ]


def is_missed(seen: dict[str, Any]) -> bool:
    """Return True if a hold cost more calls than it may."""
    holds = seen["holds"]
    bars = {"choices": MOST_WRITES, "refused": MOST_REFUSED, "reads": MOST_READS}
    return any(seen[name] / holds > bar for name, bar in bars.items())


def main() -> int:
    """Measure every server, write the section, and return 1 if a bar is missed and that matters."""
    rows: list[list[str]] = []
    missed = False
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for kind in os.environ.get("STANDFAST_BENCH_SERVERS", " ".join(SERVERS)).split():
            try:
                url = stack.enter_context(services.private(kind)).url
            except pytest.skip.Exception as problem:
                print(f"!! left out: {problem}", file=sys.stderr)
                continue
            for name, program in PROGRAMS.items():
                for processes, hold in itertools.product(CROWDS, HOLDS):
                    seen = contest(url, program, processes, hold, folder)
                    missed |= is_missed(seen)
                    rows.append(row(f"{SERVERS[kind]}{name}", processes, hold, seen))
                    print(" | ".join(rows[-1]), flush=True)
    titles = ["server", "processes", "hold", "holds/s", "writes", "refused", "reads", "hand-over p50 / p90, ms"]
    facts = f"`make bench SUBJECT=lines` · {machine_facts()} · one round of {SECONDS:g} s"
    parts = ["## Lines", facts, NOTES, table([*titles, "found free, %", "CPU a hold, ms"], rows)]
    if not os.environ.get("STANDFAST_BENCH_DRY"):
        write_section("lines", "\n\n".join(parts))
    return int(missed and "--strict" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
