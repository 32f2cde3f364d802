"""Seeing: lists and counts of runs in large stores, and what it costs to keep them.

A part is a function ``rows(stack, folder)`` that yields its rows; add it to ``PARTS``. Each part is measured in a
process of its own, as each subject is, and each row before the next one is made: so no engine, no thread and no file of
one part is there while another one is measured. With ``STANDFAST_BENCH_PARTS=index`` only the named ones are measured,
and the rows of the others are kept as they were.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import (
    _seeing_index,
    _seeing_metrics,
    _seeing_nothing,
    _seeing_requests,
    _seeing_retention,
    _seeing_traces,
)
from benchmarks.harness import ROOT, Outcome, Subject, finish, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Row

NOTES = """\
Runs of ten workflows are written into a SQLite file in bulk, a tenth of them failed. The limit is the bare query on a
table with an index on just that, through the same driver, which reads the same bytes of as many runs; a page has a
hundred. *Longest pause*: how late the event loop is at the most while a page is read and a second task asks for its
turn all the time. What the index costs is CPU time of runs of five steps, fifty at a time, with the index and without
its records, in turns on one store. What metrics cost is the same with and without the hook, on two files in turns.
*With traces*: the rows of the subjects `workflows` and `dispatch` with the hook, every trace sampled, all spans sent
by `OtlpSpans` to a receiver in a process of its own; a window of runs ends when all are sent; of the others, one has
the SDK's batch processor and drops the spans, and one encodes them with the SDK's encoder of OTLP first and drops the
bytes. The receiver reads what comes and throws it away; it has the same cores as all others. The ratio is the median
of the ratios of each round. A bare span of the SDK is begun and ended, with no attribute.
*Asking hooks that are not there*: what a run without hooks asks of them is
counted, and as many questions are timed by themselves; the limit is the run. No event is made then, and no telemetry is
imported.
*Retention*: one process makes runs as fast as it can, fifty at a time, and keeps them for a fifth of the time; the
limit is the rate of those made that had to be gone by the end. Live data is what a compact copy of the file takes."""

PARTS: Final[dict[str, Callable[[contextlib.ExitStack, Path], Iterator[Row]]]] = {
    "index": _seeing_index.rows,
    "index_cost": _seeing_index.cost_rows,
    "metrics": _seeing_metrics.rows,
    "nothing": _seeing_nothing.rows,
    "requests": _seeing_requests.rows,
    "retention": _seeing_retention.rows,
    "traces": _seeing_traces.rows,
}


def measure_part(name: str, told: Path) -> None:
    """Measure the rows of one part, one after another, and append what came out to a file."""
    with contextlib.ExitStack() as stack, told.open("a", encoding="utf-8") as outcomes:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        for row in PARTS[name](stack, folder):
            outcome = measured(row)
            print(outcome.as_json("seeing"), flush=True)
            outcomes.write(f"{outcome.packed()}\n")


def main() -> None:
    """Measure all parts, or those that are named, each in a process of its own."""
    named = os.environ.get("STANDFAST_BENCH_PARTS", "").split()
    if unknown := set(named) - PARTS.keys():
        sys.exit(f"there is no part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    subject = Subject("seeing", "Seeing what happens", notes=NOTES, part=", ".join(named))
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as folder:
        told = Path(folder) / "outcomes"
        for name in named or PARTS:
            subprocess.run([sys.executable, "-m", "benchmarks.seeing", name, str(told)], cwd=ROOT, check=True)
        lines = told.read_text(encoding="utf-8").splitlines()
    subject.outcomes.extend(map(Outcome.unpacked, lines))
    finish(subject)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in PARTS:
        measure_part(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
