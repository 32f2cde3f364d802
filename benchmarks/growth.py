"""Growth: what one branch, child, signal, update, timer, waiter or hold costs when there are many of them.

Every figure is CPU time of a process of its own, so that other work on the machine disturbs it little. Sizes are tried
from the smallest to the largest; what does not end in a minute is not tried at a larger one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

from benchmarks.harness import ROOT, machine_facts, shown, write_section

SIZES: Final = (10, 100, 1_000, 10_000, 100_000)
BASE, LARGE = 100, 10_000
"""Between these two a unit may grow by :data:`MOST`; below, the run itself is most of what is seen."""

MOST: Final = 1.5
MOST_STORED: Final = 1.2
PATIENCE: Final = float(os.environ.get("STANDFAST_BENCH_PATIENCE", "60"))
STORED: Final = int(os.environ.get("STANDFAST_BENCH_STORED", "500000"))

UNITS: Final = {
    "branches": "a branch of `ctx.gather`, one step each",
    "children": "a child, one step each",
    "timers": "a timer of one run, all due together",
    "signals": "a signal to one run",
    "updates": "an update of one run",
    "runs_due": "a run that sleeps, all due together",
    "in_one_line": "a run in one line (`concurrency=1`, queued)",
    "waiters": "a task in one line for a mutex",
    "renewals": "a lock that is held for a second",
    "beside_holders": "a run under a limit, start to end, by how many hold a place",
}

NOTES: Final = f"""\
CPU in microseconds for each, on SQLite, by how many there are. At {LARGE:,} it may be {MOST:g} times that at {BASE:,}.
The longest turn of the event loop is in the lines of JSON that the command prints. A dash: not done in {PATIENCE:g} s,
or not tried after that."""


def measured(what: str, size: int) -> dict[str, Any] | None:
    """Measure one thing in a process of its own; None if that takes too long."""
    command = [sys.executable, "-m", "benchmarks._growth_work", what, str(size)]
    patience = PATIENCE if what != "store" else 20 * PATIENCE
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def of_units() -> tuple[list[list[str]], list[str]]:
    """Measure every unit at every size; return the rows of a table, and what grows too fast."""
    rows, missed = [], []
    for what, title in UNITS.items():
        figures: dict[int, float] = {}
        pause = 0.0
        for size in SIZES:
            found = measured(what, size)
            if found is None:
                break
            figures[size], pause = found["cpu"], found["pause"]
        largest = max((size for size in figures if size <= LARGE), default=BASE)
        ratio = figures[largest] / figures[BASE] if BASE in figures else float("nan")
        if not ratio <= MOST or largest < LARGE:
            missed.append(title)
        print(
            json.dumps({"subject": "growth", "unit": what, "cpu": figures, "ratio": ratio, "pause": pause}), flush=True
        )
        cells = [shown(figures[size]) if size in figures else "-" for size in SIZES]
        rows.append([title, *cells, f"{ratio:.2f}" + ("" if largest == LARGE else f" at {largest:,}")])
    return rows, missed


def of_store() -> tuple[list[list[str]], list[str]]:
    """Measure an empty store and a full one; return the rows of a table, and what grows too fast."""
    empty, full = measured("store", 0), measured("store", STORED)
    if empty is None or full is None:
        return [], ["a store in which much lies: not done in time"]
    print(json.dumps({"subject": "growth", "empty": empty, "full": full}), flush=True)
    rows = [[what, shown(empty[what]), shown(full[what]), f"{full[what] / empty[what]:.2f}"] for what in empty]
    return rows, [what for what in empty if full[what] > MOST_STORED * empty[what]]


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return rows as a Markdown table."""
    lines = [titles, ["-" * 3] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Measure, print, and write the section of the results."""
    units, missed = of_units()
    stored, too_much = of_store()
    parts = [
        "## Growth",
        f"`make bench SUBJECT=growth` · {machine_facts()} · one round, CPU time",
        NOTES,
        table(["", *(f"{size:,}" for size in SIZES), f"{LARGE:,} / {BASE:,}"], units),
        f"A store with {STORED:,} ended and {STORED // 5:,} sleeping runs may cost {MOST_STORED:g} times as much:",
        table(["CPU a run, us", "empty", "full", "ratio"], stored),
    ]
    print("\n\n".join(parts))
    if not os.environ.get("STANDFAST_BENCH_DRY"):
        write_section("growth", "\n\n".join(parts))
    missed += too_much
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nevery bar is met")
    return 1 if missed and "--strict" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
