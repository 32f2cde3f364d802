"""Metrics of several processes as those of one: what ``standfast worker --processes N --listen`` shows.

Counters and histograms are added up. What a process had counted that has ended stays in the sums, so that they never
fall: Prometheus would take that for a new beginning. Gauges are of the store, and mostly the same in all processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SUMMED: Final = frozenset(
    {
        "standfast_runs_loaded",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    }
)
"""Gauges of each process that are added up."""

AVERAGED: Final = frozenset({"standfast_worker_utilisation"})
LEAST: Final = frozenset({"standfast_store_up", "process_start_time_seconds"})
"""Gauges of which the least counts; of all others, the greatest."""

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricFamily(Struct):
    """One metric as text: what it is, and its samples by name and labels."""

    about: list[str]
    kind: str
    samples: dict[str, float]


def families_in(text: str) -> dict[str, MetricFamily]:
    """Return the metrics of a text as Prometheus reads it; what cannot be read is left out."""
    found: dict[str, MetricFamily] = {}
    family = MetricFamily([], "untyped", {})
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, *rest = line.split(" ", 3)
            family = found.setdefault(name, MetricFamily([], "untyped", {}))
            family.about.append(line)
            if word == "TYPE":
                family.kind = rest[0] if rest else "untyped"
        elif line:
            sample, _, value = line.rpartition(" ")
            try:
                family.samples[sample] = float(value)
            except ValueError:
                continue
    return found


@final
class MergedMetrics:
    """What several processes have counted, those that have ended included."""

    def __init__(self) -> None:
        self._last: Final[dict[int, tuple[int, dict[str, MetricFamily]]]] = {}
        self._past: Final[dict[str, MetricFamily]] = {}

    def take(self, number: int, process: int, text: str) -> None:
        """Take in what a process shows.

        Args:
            number: Which of the processes it is; another process with this number takes its place.
            process: Its id.
            text: What it shows.
        """
        known = self._last.get(number)
        if known is not None and known[0] != process:
            _add(self._past, known[1])
        self._last[number] = (process, families_in(text))

    def text(self, living: Iterable[int]) -> str:
        """Return the sums as Prometheus reads them, with the gauges of those processes that live."""
        total: dict[str, MetricFamily] = {}
        for counted in (self._past, *(families for _, families in self._last.values())):
            _add(total, counted)
        now = [self._last[number][1] for number in living if number in self._last]
        for families in now:
            for name, family in families.items():
                if not _is_counted(family):
                    total.setdefault(name, MetricFamily(family.about, family.kind, {}))
        for name, family in total.items():
            if not _is_counted(family):
                family.samples = _together(name, [each[name].samples for each in now if name in each])
        lines: list[str] = []
        for family in total.values():
            lines += family.about
            lines += [f"{sample} {value!r}" for sample, value in family.samples.items()]
        return "\n".join(lines) + "\n"


def _is_counted(family: MetricFamily) -> bool:
    return family.kind in ("counter", "histogram", "summary")


def _add(total: dict[str, MetricFamily], more: Mapping[str, MetricFamily]) -> None:
    for name, family in more.items():
        if _is_counted(family):
            samples = total.setdefault(name, MetricFamily(family.about, family.kind, {})).samples
            for sample, value in family.samples.items():
                samples[sample] = samples.get(sample, 0.0) + value


def _together(name: str, given: list[dict[str, float]]) -> dict[str, float]:
    """Return the samples of a gauge of several processes."""
    values: dict[str, list[float]] = {}
    for samples in given:
        for sample, value in samples.items():
            values.setdefault(sample, []).append(value)
    if name in SUMMED:
        return {sample: sum(each) for sample, each in values.items()}
    if name in AVERAGED:
        return {sample: sum(each) / len(each) for sample, each in values.items()}
    return {sample: (min if name in LEAST else max)(each) for sample, each in values.items()}
