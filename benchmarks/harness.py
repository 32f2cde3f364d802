"""Measure contestants side by side, and write down what came out.

Absolute figures move from machine to machine and from minute to minute, so only ratios count: all contestants of
a row take turns in every round, and the median over the rounds is compared. A subject looks like this::

    subject = Subject("local", "In one process", command="make bench SUBJECT=local")
    subject.add(Row("uncontended", "ns", standfast=ours, limit=bare, peers={"asyncio.Lock": lock}, bar=at_most(1.3)))
    finish(subject)

Needs the standard library only, so that peers can use it in an environment of their own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from benchmarks._figures import HEADINGS, refreshed, table_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Measure = Callable[[], float]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
FIGURES = ROOT / "docs" / "explanation" / "figures.md"
ENVIRONMENTS = ROOT / ".cache" / "bench"
LIMIT, STANDFAST = "limit", "Standfast"
ROUNDS = int(os.environ.get("STANDFAST_BENCH_ROUNDS", "7"))
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Bar:
    """What the ratio to another contestant must reach; with ``plain``, what Standfast's own figure must reach."""

    bound: float
    upper: bool
    of: str = LIMIT
    plain: bool = False

    def ratio(self, medians: Mapping[str, float]) -> float | None:
        """Return Standfast's figure in terms of the bar, or None if there is nothing to compare with."""
        if self.plain:
            return medians[STANDFAST]
        other = medians.get(self.of)
        return medians[STANDFAST] / other if other else None

    def met(self, ratio: float) -> bool:
        """Return True if a ratio reaches the bar."""
        return ratio <= self.bound if self.upper else ratio >= self.bound

    def __str__(self) -> str:
        sign = "≤" if self.upper else "≥"
        of = "" if self.plain else " x the limit" if self.of == LIMIT else f" x {self.of}"
        return f"{sign} {self.bound:g}{of}"


def at_most(bound: float, of: str = LIMIT) -> Bar:
    """Standfast may cost at most ``bound`` times what ``of`` costs."""
    return Bar(bound, upper=True, of=of)


def at_least(bound: float, of: str = LIMIT) -> Bar:
    """Standfast must do at least ``bound`` times what ``of`` does."""
    return Bar(bound, upper=False, of=of)


def plainly_at_most(bound: float) -> Bar:
    """Standfast's figure itself may be at most ``bound``."""
    return Bar(bound, upper=True, plain=True)


def plainly_at_least(bound: float) -> Bar:
    """Standfast's figure itself must be at least ``bound``."""
    return Bar(bound, upper=False, plain=True)


@dataclass(frozen=True)
class Row:
    """One question, asked of every contestant. A measure returns its figure in ``unit``.

    ``absent`` says of peers that could not be asked why that is so. With ``by_round`` figures are compared within each
    round, and the median of these ratios counts: for short windows, where something else on the machine slows down a
    few rounds in a row, and the medians of two contestants may come from either side of that.
    """

    what: str
    unit: str
    standfast: Measure
    limit: Measure | None = None
    peers: Mapping[str, Measure] = field(default_factory=dict)
    bar: Bar | None = None
    rounds: int = ROUNDS
    absent: Mapping[str, str] = field(default_factory=dict)
    by_round: bool = False

    def contestants(self) -> dict[str, Measure]:
        """Return everyone who is measured, by name."""
        limit = {} if self.limit is None else {LIMIT: self.limit}
        return {**limit, **self.peers, STANDFAST: self.standfast}


@dataclass(frozen=True)
class Outcome:
    """What came out of a row: every figure of every round."""

    row: Row
    figures: Mapping[str, list[float]]

    @property
    def medians(self) -> dict[str, float]:
        """The median of each contestant."""
        return {name: statistics.median(figures) for name, figures in self.figures.items()}

    @property
    def ratio(self) -> float | None:
        """Standfast's figure in terms of the bar; without a bar, how it compares to the limit."""
        bar = self.row.bar or at_least(0)
        if not self.row.by_round:
            return bar.ratio(self.medians)
        rounds = [dict(zip(self.figures, each, strict=True)) for each in zip(*self.figures.values(), strict=True)]
        ratios = [ratio for each in rounds if (ratio := bar.ratio(each)) is not None]
        return statistics.median(ratios) if ratios else None

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; None if there is none, or it could not be measured."""
        bar, ratio = self.row.bar, self.ratio
        return None if bar is None or ratio is None else bar.met(ratio)

    def packed(self) -> str:
        """Return it as one line, for another process; what was measured is left out, and only the figures are told."""
        row = self.row
        told = {
            "row": [row.what, row.unit, row.rounds, dict(row.absent), row.by_round],
            "has_limit": row.limit is not None,
            "peers": list(row.peers),
            "bar": row.bar and asdict(row.bar),
            "figures": dict(self.figures),
        }
        return json.dumps(told)

    @classmethod
    def unpacked(cls, line: str) -> Outcome:
        """Return what another process has measured."""
        told = json.loads(line)

        def elsewhere() -> float:
            raise RuntimeError("this was measured in another process")

        what, unit, rounds, absent, by_round = told["row"]
        limit, peers = elsewhere if told["has_limit"] else None, dict.fromkeys(told["peers"], elsewhere)
        bar = told["bar"] and Bar(**told["bar"])
        return cls(Row(what, unit, elsewhere, limit, peers, bar, rounds, absent, by_round), told["figures"])

    def as_json(self, subject: str) -> str:
        """Return the outcome as one line of JSON."""
        bar, medians = self.row.bar, self.medians
        facts = {
            "subject": subject,
            "row": self.row.what,
            "unit": self.row.unit,
            "medians": {name: float(f"{value:.5g}") for name, value in medians.items()},
            "spread": {name: [float(f"{min(v):.5g}"), float(f"{max(v):.5g}")] for name, v in self.figures.items()},
            "ratio": self.ratio,
            "bar": bar and str(bar),
            "met": self.met,
        }
        return json.dumps(facts, ensure_ascii=False)

    def as_cells(self) -> list[str]:
        """Return the outcome as the cells of a table."""
        bar, medians, unit = self.row.bar, self.medians, self.row.unit
        peers = [f"{name} {shown(medians[name])}" for name in self.row.peers if name in medians]
        peers += [f"{name}: {why}" for name, why in self.row.absent.items()]
        ratio = self.ratio
        return [
            f"{self.row.what} ({unit})",
            shown(medians[LIMIT]) if LIMIT in medians else "-",
            ", ".join(peers) or "-",
            shown(medians[STANDFAST]),
            "-" if ratio is None else shown(ratio) if bar and bar.plain else f"{ratio:.2f}",
            str(bar) if bar else "-",
            {True: "yes", False: "**no**", None: "-"}[self.met],
        ]


def shown(figure: float) -> str:
    """Return a figure with as many digits as mean something."""
    if abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"


class Subject:
    """A set of rows that belong together: one program, one section of the results.

    If only a ``part`` of them is measured, it is named, and the other rows of the section are kept as they were.
    """

    def __init__(self, name: str, title: str, *, command: str = "", notes: str = "", part: str = "") -> None:
        self.name, self.title, self.notes, self.part = name, title, notes, part
        self.command = command or f"make bench SUBJECT={name}"
        self.outcomes: list[Outcome] = []
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Put a row on the programme."""
        self._rows.append(row)

    def run(self) -> list[Outcome]:
        """Measure every row, print it, and put this subject's section into the results."""
        for row in self._rows:
            outcome = measured(row)
            self.outcomes.append(outcome)
            print(outcome.as_json(self.name), flush=True)
        print("\n" + table([outcome.as_cells() for outcome in self.outcomes]))
        if not os.environ.get("STANDFAST_BENCH_DRY"):
            write_section(self.name, self._section())
        return self.outcomes

    def _section(self) -> str:
        rounds = sorted({len(outcome.figures[STANDFAST]) for outcome in self.outcomes})
        rows = [outcome.as_cells() for outcome in self.outcomes]
        facts = machine_facts()
        if self.part:
            new = {cells[0]: cells for cells in rows}
            old = table_rows(RESULTS.read_text(encoding="utf-8"), self.name)
            rows = [new.pop(cells[0], cells) for cells in old] + list(new.values())
            facts = f"{facts} ({self.part}; the other rows are older)"
        parts = [
            f"## {self.title}",
            f"`{self.command}` · {facts} · median of {' to '.join(map(str, rounds))} interleaved rounds",
            *([self.notes] if self.notes else []),
            table(rows),
        ]
        return "\n\n".join(parts)


def finish(subject: Subject) -> NoReturn:
    """Run a subject as a program; with ``--strict`` a missed bar is a failure."""
    outcomes = subject.run()
    missed = [outcome.row.what for outcome in outcomes if outcome.met is False]
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nevery bar is met")
    sys.exit(1 if missed and "--strict" in sys.argv else 0)


def measured(row: Row) -> Outcome:
    """Let the contestants of a row take turns, after one round that does not count.

    Each round begins with another contestant, so that nobody always follows the same neighbour.
    """
    contestants = list(row.contestants().items())
    figures: dict[str, list[float]] = {name: [] for name, _ in contestants}
    for number in range(-1, max(row.rounds, FEWEST_ROUNDS)):
        shift = number % len(contestants)
        for name, measure in contestants[shift:] + contestants[:shift]:
            gc.collect()
            figure = measure()
            if number >= 0:
                figures[name].append(figure)
    return Outcome(row, figures)


# --- what is written down -----------------------------------------------------------------------------------------


def table(rows: list[list[str]]) -> str:
    """Return rows as a Markdown table whose columns also line up in a terminal."""
    everything = [HEADINGS, *rows]
    widths = [max(len(cells[column]) for cells in everything) for column in range(len(HEADINGS))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in everything]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def machine_facts() -> str:
    """Say on what the figures were measured, without naming the machine."""
    today = datetime.now(UTC).date()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, {python}, {today}"


def write_section(name: str, text: str) -> None:
    """Put a subject's section into the results, in place of the one it had."""
    begin, end = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
    known = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else PREFACE
    section = f"{begin}\n\n{text}\n\n{end}\n"
    pattern = re.compile(rf"{re.escape(begin)}.*?{re.escape(end)}\n", re.DOTALL)
    changed = pattern.sub(lambda _: section, known) if pattern.search(known) else f"{known}\n{section}"
    RESULTS.write_text(changed, encoding="utf-8")
    page = FIGURES.read_text(encoding="utf-8")
    FIGURES.write_text(refreshed(page, changed), encoding="utf-8")


PREFACE = """# Results

Written by `make bench`. Figures move from run to run, so only the ratios of one run mean something: the *limit* is the
same work done bare, the peers are measured side by side with it.
"""


# --- peers in an environment of their own -------------------------------------------------------------------------


def peer_environment(name: str, *packages: str) -> Path | None:
    """Return the interpreter of an environment with ``packages``, made on first use; None, loudly, if it cannot be."""
    home = ENVIRONMENTS / name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join([sys.version, *packages])
    if python.exists() and (home / "ready").exists() and (home / "ready").read_text(encoding="utf-8") == wanted:
        return python
    try:
        _install(home, python, packages)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"!! peers left out, {name} could not be set up ({', '.join(packages)}): {error}", file=sys.stderr)
        return None
    (home / "ready").write_text(wanted, encoding="utf-8")
    return python


def _install(home: Path, python: Path, packages: tuple[str, ...]) -> None:
    print(f"setting up peers in {home.relative_to(ROOT)}: {', '.join(packages)}", file=sys.stderr)
    shutil.rmtree(home, ignore_errors=True)
    uv = ["sh", str(ROOT / "tools" / "uv")]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)


@contextlib.contextmanager
def peer_process(python: Path | None, module: str) -> Iterator[dict[str, Measure]]:
    """Start ``module`` in a peer environment and give its measures by name; none if there is no environment.

    The process stays up, so that its measures take part in every round like all the others.
    """
    if python is None:
        yield {}
        return
    command = [str(python), "-m", module]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as process:
        names: list[str] = json.loads(_ask(process, ""))
        try:
            yield {name: _PeerMeasure(process, name) for name in names}
        finally:
            assert process.stdin is not None
            process.stdin.close()


@dataclass(frozen=True)
class _PeerMeasure:
    process: subprocess.Popen[str]
    name: str

    def __call__(self) -> float:
        return float(json.loads(_ask(self.process, self.name)))


def _ask(process: subprocess.Popen[str], question: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{question}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        message = f"the peers' process ended with code {process.wait()} when asked for {question or 'its names'!r}"
        raise RuntimeError(message)
    return answer


def serve(measures: Mapping[str, Measure]) -> NoReturn:
    """Answer :func:`peer_process` until it hangs up: an empty line asks for the names, a name for its figure."""
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps(measures[name]() if name else list(measures)), flush=True)
    sys.exit(0)
