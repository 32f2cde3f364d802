"""Growth: what one branch, child, signal, update, timer, waiter or hold costs when there are many of them.

Every figure is CPU time of a process of its own, so that other work on the machine disturbs it little. Sizes are tried
from the smallest to the largest, for as long as the next one is expected to end in a minute of CPU. How long the steps
of another run of the same process take meanwhile, and how much several processes do in a second, is time by the clock:
for that the machine must be quiet. ``STANDFAST_BENCH_PARTS="units store"`` measures parts alone, and
``STANDFAST_BENCH_UNITS="timers purge"`` units alone, which are then printed and not written.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

import pytest

from benchmarks import _growth_processes as processes
from benchmarks.harness import ROOT, machine_facts, shown, write_section
from tests import services

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES: Final = (10, 100, 1_000, 10_000, 100_000)
BASE, LARGE = 100, 10_000
"""Between these two a unit may grow by :data:`MOST`; below, the run itself is most of what is seen."""

MOST: Final = 1.5
MOST_STORED: Final = 1.2
PATIENCE: Final = int(os.environ.get("STANDFAST_BENCH_PATIENCE", "60"))
"""Seconds of CPU that one measurement may take, preparations included."""

BY_THE_CLOCK: Final = 10
"""On a busy machine it may take this many times as long by the clock."""

LONGEST_TURN: Final = 50.0
MOST_BESIDE: Final = 3.0
ROUNDS: Final = 3
CORES: Final = 2
LEAST_OF_CORES: Final = 1.7
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
    "requests": "a request in one queue, all at once",
    "purge": "a run that is deleted (`purge`)",
    "sweeps": "a run that is no longer kept, and swept",
}

CONSTANT: Final = ("beside_holders",)
"""What takes as long whatever the size."""

BESIDE: Final = ("branches", "children", "timers", "signals", "updates")
"""Beside which a run is looked at that takes one step after another."""

HOW: Final = {
    "units": "one round, CPU time",
    "beside": "one round, by the clock",
    "store": "median of five rounds in turns, CPU time",
    "processes": f"median of {ROUNDS} rounds in turns, by the clock",
}

NOTES: Final = f"""\
CPU in microseconds for each, on SQLite, by how many there are. At {LARGE:,} it may be {MOST:g} times that at {BASE:,}.
*Turn*: the longest turn of the event loop at {LARGE:,}, in milliseconds of CPU; {LONGEST_TURN:g} is the bar. *Gc*: the
longest collection of Python's garbage collector, apart from that turn: it looks at all objects that are alive.
A dash: not done in {PATIENCE} s of CPU, or expected to take longer."""


def measured(what: str, size: int, *, beside: bool = False, patience: int = PATIENCE) -> dict[str, Any] | None:
    """Measure one thing in a process of its own; None if that takes too long."""
    command = [sys.executable, "-m", "benchmarks._growth_work", *(["beside"] if beside else []), what, str(size)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "STANDFAST_BENCH_CPU": str(patience)},
            check=True,
            capture_output=True,
            text=True,
            timeout=BY_THE_CLOCK * patience,
        )
    except subprocess.TimeoutExpired:
        return None
    except subprocess.CalledProcessError as failed:
        print(f"!! {what} {size}: code {failed.returncode} {failed.stderr.splitlines()[-1:]}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def cpu_of_children() -> float:
    """Return the seconds of CPU that the processes used which were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def chosen_units() -> dict[str, str]:
    """Return the units that ``STANDFAST_BENCH_UNITS`` names, or all."""
    chosen = os.environ.get("STANDFAST_BENCH_UNITS", "").split()
    return {name: UNITS[name] for name in chosen} or UNITS


def of_units() -> tuple[list[list[str]], list[str]]:
    """Measure every unit at every size; return the rows of a table, and what grows too fast."""
    rows, missed = [], []
    for what, title in chosen_units().items():
        figures: dict[int, float] = {}
        pauses: dict[int, float] = {}
        collections: dict[int, float] = {}
        for size in SIZES:
            before = cpu_of_children()
            found = measured(what, size)
            if found is None:
                break
            figures[size], pauses[size], collections[size] = found["cpu"], found["pause"], found["collection"]
            if (cpu_of_children() - before) * 10 > PATIENCE and what not in CONSTANT:
                break
        largest = max((size for size in figures if size <= LARGE), default=BASE)
        ratio = figures[largest] / figures[BASE] if BASE in figures else float("nan")
        pause = pauses.get(largest, float("nan"))
        if not ratio <= MOST or largest < LARGE:
            missed.append(title)
        if not pause <= LONGEST_TURN:
            missed.append(f"{title}: a turn of {pause:.0f} ms")
        told = {"cpu": figures, "ratio": ratio, "pause": pauses, "gc": collections}
        print(json.dumps({"subject": "growth", "unit": what, **told}), flush=True)
        cells = [shown(figures[size]) if size in figures else "-" for size in SIZES]
        compared = f"{ratio:.2f}" + ("" if largest == LARGE else f" at {largest:,}")
        rows.append([title, *cells, compared, f"{pause:.0f}", f"{collections.get(largest, float('nan')):.0f}"])
    return rows, missed


def of_neighbours() -> tuple[list[list[str]], list[str]]:
    """Measure the steps of a run beside others that have many parts; return the rows of a table, and what is missed."""
    rows, missed = [], []
    for what in BESIDE:
        few, many = measured(what, BASE, beside=True), measured(what, LARGE, beside=True)
        if few is None or many is None:
            missed.append(f"a run beside {what}")
            continue
        print(json.dumps({"subject": "growth", "beside": what, BASE: few, LARGE: many}), flush=True)
        ratio = many["p99"] / few["p99"]
        rows.append([what, *(shown(each[key]) for each in (few, many) for key in ("p50", "p99")), f"{ratio:.2f}"])
        if ratio > MOST_BESIDE:
            missed.append(f"a run beside {what}: p99 {ratio:.1f} times")
    return rows, missed


def of_store() -> tuple[list[list[str]], list[str]]:
    """Measure an empty store and a full one; return the rows of a table, and what grows too fast."""
    found = measured("store", STORED, patience=20 * PATIENCE)
    if found is None:
        return [], ["a store in which much lies: not done in time"]
    print(json.dumps({"subject": "growth", "store": found}), flush=True)
    rows = [[what, shown(each["empty"]), shown(each["full"]), f"{each['ratio']:.2f}"] for what, each in found.items()]
    return rows, [what for what, each in found.items() if each["ratio"] > MOST_STORED]


def of_processes() -> tuple[list[list[str]], list[str]]:
    """Measure the worker command with one process and with two; return the rows of a table, and what is missed."""
    rows, missed = [], []
    with contextlib.ExitStack() as stack:
        for name, url in stores(stack):
            rounds = [(processes.carried_by(url, 1), processes.carried_by(url, CORES)) for _ in range(ROUNDS)]
            one, two = [statistics.median(each[at].rate for each in rounds) for at in (0, 1)]
            busy = statistics.median(alone.cores for alone, _ in rounds)
            told = {"subject": "growth", "processes": name, "one": one, "two": two, "busy": busy}
            print(json.dumps(told), flush=True)
            rows.append([name, shown(one), shown(two), f"{two / one:.2f}", f"{busy:.2f}", f"{CORES / busy:.2f}"])
            if two < LEAST_OF_CORES * one:
                missed.append(f"two processes on {name}: {two / one:.2f} times one")
    return rows, missed


def stores(stack: contextlib.ExitStack) -> Iterator[tuple[str, str]]:
    """Yield each store on which several processes are measured: its name and its URL."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    yield "SQLite", f"sqlite:///{folder}/store.db"
    try:
        yield "PostgreSQL", stack.enter_context(services.private("postgresql")).url
    except pytest.skip.Exception as problem:
        print(f"!! left out: {problem}", file=sys.stderr)


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return rows as a Markdown table."""
    lines = [titles, ["-" * 3] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def told_units() -> tuple[str, list[str]]:
    """Return the part about units, and what is missed."""
    rows, missed = of_units()
    titles = ["", *(f"{size:,}" for size in SIZES), f"{LARGE:,} / {BASE:,}", "turn, ms", "gc, ms"]
    return f"{NOTES}\n\n{table(titles, rows)}", missed


def told_neighbours() -> tuple[str, list[str]]:
    """Return the part about other runs of the process, and what is missed."""
    rows, missed = of_neighbours()
    titles = ["beside", *(f"{size:,}: {each}" for size in (BASE, LARGE) for each in ("p50", "p99")), "ratio"]
    said = f"Steps of another run of the process meanwhile, in ms by the clock; p99 may be {MOST_BESIDE:g} times:"
    return f"{said}\n\n{table(titles, rows)}", missed


def told_store() -> tuple[str, list[str]]:
    """Return the part about a store in which much lies, and what is missed."""
    rows, missed = of_store()
    said = f"A store with {STORED:,} ended and {STORED // 5:,} sleeping runs may cost {MOST_STORED:g} times as much:"
    return f"{said}\n\n{table(['CPU a run, us', 'empty', 'full', 'ratio'], rows)}", missed


def told_processes() -> tuple[str, list[str]]:
    """Return the part about several processes, and what is missed."""
    rows, missed = of_processes()
    bar = f"{LEAST_OF_CORES:g} is the bar"
    said = (
        f"`standfast worker --processes`: runs a second, of five steps of 1 ms each; {bar}. *Busy*: how many\n"
        f"of the {CORES} cores work while there is one process, server and client included. *At most* is\n"
        f"what {CORES} processes could carry on this machine, if nothing that they do cost more than with one:"
    )
    titles = ["", "1 process", f"{CORES} processes", "ratio", "busy", "at most"]
    return f"{said}\n\n{table(titles, rows)}", missed


PARTS: Final = {
    "units": ("Growth", told_units),
    "beside": ("Growth: other runs of the process", told_neighbours),
    "store": ("Growth: a store in which much lies", told_store),
    "processes": ("Growth: several processes", told_processes),
}


def main() -> int:
    """Measure the parts that ``STANDFAST_BENCH_PARTS`` names, or all; print them, and write their sections."""
    missed: list[str] = []
    for name in os.environ.get("STANDFAST_BENCH_PARTS", " ".join(PARTS)).split():
        title, tell = PARTS[name]
        text, found = tell()
        missed += found
        said = f"## {title}\n\n`make bench SUBJECT=growth` · {machine_facts()} · {HOW[name]}\n\n{text}"
        print(said, flush=True)
        if not os.environ.get("STANDFAST_BENCH_DRY") and not os.environ.get("STANDFAST_BENCH_UNITS"):
            write_section("growth" if name == "units" else f"growth_{name}", said)
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nevery bar is met")
    return 1 if missed and "--strict" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
