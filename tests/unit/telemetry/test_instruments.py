"""Instruments: names that Prometheus likes, few labels, and numbers that several threads may change."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from standfast.telemetry.instruments import (
    COMMIT_SECONDS,
    INSTRUMENTS,
    MOST_LABELS,
    READY,
    RUNS_STARTED,
    CounterValues,
    GaugeValue,
    HistogramValues,
    Instrument,
    bounded,
)

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ALLOWED = {"workflow", "step", "family", "flow", "action", "policy", "outcome", "verdict", "backend"}


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda each: each.name)
def test_a_name_says_its_unit_and_its_labels_are_declared_names(instrument: Instrument) -> None:
    """Seconds and ``_total``; never a key, a run, a tenant or a user."""
    assert re.fullmatch(r"standfast_[a-z_]+", instrument.name)
    assert instrument.name.endswith("_total") == (instrument.kind == "counter")
    assert bool(instrument.bounds) == (instrument.kind == "histogram")
    assert list(instrument.bounds) == sorted(instrument.bounds)
    assert set(instrument.labels) <= ALLOWED


def test_the_page_tells_of_every_metric_and_of_no_other() -> None:
    """With its kind and labels; whoever is woken at night finds it."""
    rows = re.findall(r"^\| `(standfast_\w+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    found = {(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert found == {(each.name, each.kind, each.labels) for each in INSTRUMENTS}
    assert len(rows) == len(INSTRUMENTS)


def test_what_comes_after_two_hundred_label_sets_is_counted_as_other() -> None:
    """A program that makes names up fills no memory, and its sum stays right."""
    counter, histogram = CounterValues(RUNS_STARTED), HistogramValues(COMMIT_SECONDS)
    for number in range(MOST_LABELS + 50):
        counter.add((f"workflow-{number}",))
        histogram.observe((f"backend-{number}",), 0.5)
    counter.add(("workflow-0",))
    values = dict(counter.read())
    assert len(values) == MOST_LABELS + 1
    assert (values["other",], values["workflow-0",], sum(values.values())) == (50, 2, MOST_LABELS + 51)
    assert {labels: sum(counts) for labels, counts, _ in histogram.read()}["other",] == 50


def test_a_gauge_has_at_most_two_hundred_label_sets() -> None:
    """The rest are left out: a gauge of others would mean nothing."""
    assert len(bounded([GaugeValue(READY, 1.0, (str(number),)) for number in range(500)])) == MOST_LABELS


def test_a_value_falls_into_the_first_bucket_that_is_not_smaller() -> None:
    """As Prometheus counts: a bound is included."""
    instrument = Instrument("standfast_test_seconds", "histogram", "", (), (1.0, 2.0))
    histogram = HistogramValues(instrument)
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe((), value)
    assert histogram.read() == [((), [2, 1, 1], 12.0)]


def test_threads_do_not_lose_counts() -> None:
    """Hooks are called on whatever thread something happens."""
    counter = CounterValues(RUNS_STARTED)

    def count() -> None:
        for _ in range(2_000):
            counter.add(("a",))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counter.read() == [(("a",), 8_000)]
