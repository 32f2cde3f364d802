"""What metrics count of runs and steps: the same whether events are made for them or bare facts are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

import standfast as sf
from standfast.clock import MICROSECONDS, Instant
from standfast.errors import RunFailedError
from standfast.events import Committed, Event, RunMoved, StepRecorded
from standfast.hooks import Hooks
from standfast.telemetry import metrics as counting
from standfast.telemetry.exporters import PrometheusMetrics
from standfast.telemetry.instruments import (
    COMMIT_CONFLICTS,
    COMMIT_RIDERS,
    COMMIT_SECONDS,
    RUNS_ENDED,
    STEP_DURATION,
    STEPS,
)

if TYPE_CHECKING:
    from standfast.telemetry.instruments import Instrument


@sf.step
async def charge(number: int) -> int:
    """Fail for some."""
    if number < 0:
        raise ValueError(number)
    return number


@sf.workflow
async def pay(ctx: sf.Context, number: int) -> int:
    """Charge, rest and charge again."""
    await ctx.step(charge, number)
    await ctx.sleep(0.01)
    return await ctx.step(charge, number)


async def counted(*more: Any) -> PrometheusMetrics:
    """Return metrics of one run that went well and one that failed, beside other hooks."""
    metrics = PrometheusMetrics(CollectorRegistry())
    async with sf.Engine(
        "memory://", workflows=[pay], hooks=[metrics, *more], worker=sf.admin.WorkerLimits(linger=0)
    ) as engine:
        await (await engine.start(pay, 1)).result()
        with pytest.raises(RunFailedError):
            await (await engine.start(pay, -1)).result()
    metrics.add_up()
    return metrics


def shown(metrics: PrometheusMetrics) -> dict[str, Any]:
    """Return what was counted of runs and steps: numbers, and how many values histograms have."""
    names = ("run", "step", "takeover")
    found: dict[str, Any] = {}
    for instrument, values in (*metrics.counters.items(), *metrics.histograms.items()):
        if any(name in instrument.name for name in names):
            found[instrument.name] = sorted((each[0], _number(instrument, each)) for each in values.read())
    return found


def _number(instrument: Instrument, read: Any) -> float:
    return float(sum(read[1])) if instrument.kind == "histogram" else float(read[1])


async def test_bare_facts_count_as_much_as_events_do() -> None:
    """With metrics alone no event is made of a step; with a second hook that wants them, they are."""
    heard: list[Event] = []

    class Listens:
        def wants(self, kind: type[Event]) -> bool:
            return kind in (RunMoved, StepRecorded)

        def __call__(self, event: Event, /) -> None:
            heard.append(event)

    with patch.object(counting.Metrics, "__call__", lambda *_: pytest.fail("an event was made")):
        alone = await counted()
    beside = await counted(Listens())

    assert shown(alone) == shown(beside)
    assert len(heard) > 5
    assert dict(alone.counters[STEPS].read()) == {("pay", "charge", "completed"): 2, ("pay", "charge", "failed"): 1}
    assert {labels: number for labels, number in alone.counters[RUNS_ENDED].read() if number} == {
        ("pay", "completed"): 1,
        ("pay", "failed"): 1,
    }
    [(_, counts, seconds)] = alone.histograms[STEP_DURATION].read()
    assert (sum(counts), seconds > 0) == (3, True)


async def test_facts_do_not_pile_up_where_nothing_scrapes() -> None:
    """They are counted with the commits, some thousands at a time."""
    metrics = PrometheusMetrics(CollectorRegistry())
    with patch.object(counting, "MANY", 10):
        async with sf.Engine("memory://", workflows=[pay], hooks=[metrics]) as engine:
            for _ in range(10):
                await (await engine.start(pay, 1)).result()
    tallies: Any = metrics._tallies

    assert sum(map(len, tallies._steps.values())) + len(tallies._started) < 20
    assert sum(number for _, number in metrics.counters[STEPS].read()) > 10


def test_transactions_count_the_same_as_facts_or_as_events() -> None:
    """Their time, their riders and those that lost a race; also of a store of which none ever did."""
    facts, events = PrometheusMetrics(CollectorRegistry()), PrometheusMetrics(CollectorRegistry())
    take: Any = facts.tally_of(Committed)
    for number in range(300):
        store, seconds = ("sqlite:///jobs.db", "memory://")[number % 2], (number**3 + 1) / MICROSECONDS
        riders, lost = number + 1, 3 if number % 6 == 2 else 0
        take(store, seconds, riders, lost)
        events(Committed(at=Instant(1), store=store, seconds=seconds, riders=riders, conflicts=lost))
    facts.add_up()

    for instrument in (COMMIT_SECONDS, COMMIT_RIDERS):
        for one, other in zip(*(sorted(each.histograms[instrument].read()) for each in (facts, events)), strict=True):
            assert one[:2] == other[:2]
            assert one[2] == pytest.approx(other[2], rel=1e-3)
    assert sorted(facts.counters[COMMIT_CONFLICTS].read()) == [(("memory",), 0.0), (("sqlite",), 150.0)]
    assert sorted(facts.counters[COMMIT_CONFLICTS].read()) == sorted(events.counters[COMMIT_CONFLICTS].read())


def test_a_flaw_in_counting_does_not_reach_the_store(caplog: pytest.LogCaptureFixture) -> None:
    """The transaction is durable, and what rides in it must hear of that."""
    metrics = PrometheusMetrics(CollectorRegistry())
    take: Any = metrics.tally_of(Committed)
    with patch.object(counting.Tallies, "add_up", side_effect=ArithmeticError):
        take("sqlite:///jobs.db", 0.1, counting.MANY, 0)

    assert "event=metrics-not-counted" in caplog.text


async def test_without_hooks_no_event_of_ordinary_work_is_made() -> None:
    """A program that watches nothing pays for nothing: not one event is told while runs, steps and locks work."""
    told: list[Event] = []
    with patch.object(Hooks, "emit", lambda _, event: told.append(event)):
        async with sf.Engine("memory://", workflows=[pay]) as engine:
            await (await engine.start(pay, 1)).result()
            async with engine.space.mutex("a").hold():
                pass

    assert told == []
