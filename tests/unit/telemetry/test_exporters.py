"""Metrics of real engines, as Prometheus and OpenTelemetry read them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import standfast as sf
from standfast.errors import RequestRejectedError, RunFailedError
from standfast.events import Event
from standfast.flows.request import Call
from standfast.telemetry.exporters import OpenTelemetryMetrics, PrometheusMetrics
from standfast.telemetry.instruments import INSTRUMENTS

if TYPE_CHECKING:
    from pathlib import Path

ORDER = sf.KeyFamily("order-of-metrics-test")
FLOW = sf.Flow("desk-of-metrics")


@sf.step
async def charge(number: int) -> int:
    """Fail for some."""
    if number < 0:
        raise ValueError(number)
    return number


@sf.workflow
async def pay(ctx: sf.Context, number: int) -> int:
    """Charge under a lock."""
    async with ctx.mutex(ORDER("secret-customer")):
        return await ctx.step(charge, number)


@FLOW.action(concurrency=sf.Reject(key="tenant"))
async def once(_request: sf.Request) -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


async def samples(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what a scrape says, parsed."""
    text, media_type = await metrics.text()
    assert media_type.startswith("text/plain")
    families = text_string_to_metric_families(text.decode())
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    """Return labels as samples have them."""
    return tuple(sorted(labels.items()))


async def test_runs_steps_locks_and_commits_are_counted(tmp_path: Path) -> None:
    """One hook is enough; a scrape is what Prometheus reads."""
    metrics = PrometheusMetrics(CollectorRegistry())
    engine = sf.Engine(f"sqlite:///{tmp_path}/jobs.db", workflows=[pay], hooks=[metrics])
    async with engine:
        await (await engine.start(pay, 1)).result()
        with pytest.raises(RunFailedError):
            await (await engine.start(pay, -1)).result()
        async with engine.space.mutex("a").hold():
            pass
        found = await samples(metrics)
    assert found["standfast_runs_started_total", labelled(workflow="pay")] == 2
    assert found["standfast_runs_ended_total", labelled(workflow="pay", outcome="failed")] == 1
    assert found["standfast_run_duration_seconds_count", labelled(workflow="pay")] == 2
    assert found["standfast_steps_total", labelled(workflow="pay", step="charge", outcome="completed")] == 1
    assert found["standfast_lock_hold_seconds_count", labelled(family=ORDER.name)] == 2
    assert found["standfast_locks_released_total", labelled(family="text", outcome="released")] == 1
    assert found["standfast_commit_seconds_count", labelled(backend="sqlite")] > 4
    assert found["standfast_commit_riders_bucket", labelled(backend="sqlite", le="+Inf")] > 4
    assert (found["standfast_store_up", ()], found["standfast_workers", ()]) == (1, 1)
    assert found["standfast_store_bytes", labelled(backend="sqlite")] > 0


async def test_no_label_has_a_key_a_run_or_a_message(tmp_path: Path) -> None:
    """What a program is used with never becomes a name of a metric."""
    metrics = PrometheusMetrics(CollectorRegistry())
    async with sf.Engine(f"sqlite:///{tmp_path}/jobs.db", workflows=[pay], hooks=[metrics]) as engine:
        await (await engine.start(pay, 1, id="run-of-ada")).result()
        text = (await metrics.text())[0].decode()
    assert "secret-customer" not in text
    assert "run-of-ada" not in text
    assert str(tmp_path) not in text


async def test_requests_are_counted_by_policy_and_verdict() -> None:
    """A refusal is a verdict, and not an end."""
    metrics = PrometheusMetrics(CollectorRegistry())
    async with sf.Dispatcher(sf.Engine("memory://", hooks=[metrics]), flows=[FLOW]) as dispatcher:
        first = await dispatcher.dispatch(Call(flow=FLOW.kind, action="once", inputs={}))
        with pytest.raises(RequestRejectedError):
            await dispatcher.dispatch(Call(flow=FLOW.kind, action="once", inputs={}))
        await first.cancel("enough")
        await asyncio.wait([asyncio.ensure_future(first.result())])
        found = await samples(metrics)
    request = {"flow": FLOW.kind, "action": "once", "policy": "reject"}
    assert found["standfast_requests_total", labelled(**request, verdict="run")] == 1
    assert found["standfast_requests_total", labelled(**request, verdict="refused")] == 1
    assert found["standfast_requests_ended_total", labelled(**request, outcome="cancelled")] == 1


async def test_gauges_say_what_waits_and_for_how_long(tmp_path: Path) -> None:
    """Also in a process that drives nothing, and without code."""
    url, metrics = f"sqlite:///{tmp_path}/jobs.db", PrometheusMetrics(CollectorRegistry())
    async with sf.Engine(url, workflows=[pay], drive=False) as starter:
        for number in range(3):
            await starter.start(pay, number)
        async with sf.Engine(url, drive=False, hooks=[metrics]) as watcher:
            async with watcher.space.mutex(ORDER("7")).hold():
                waiting = asyncio.create_task(watcher.space.mutex(ORDER("7")).hold(owner="b").__aenter__())
                async with watcher.space.watch(watcher.space.key("ticket")) as watch:
                    while not (await watcher.space.explain(ORDER("7"))).waiters:
                        await watch.wait(0.1)
                found = await samples(metrics)
            await waiting
    assert (found["standfast_runs_ready", ()], found["standfast_runs_without_code", ()]) == (3, 3)
    assert found["standfast_runs_ready_oldest_seconds", ()] > 0
    assert found["standfast_lines_waiting", labelled(family=ORDER.name)] == 1
    assert found["standfast_lines_oldest_wait_seconds", labelled(family=ORDER.name)] >= 0
    assert found["standfast_runs_in_quarantine", ()] == 0


async def test_many_scrapes_read_the_store_once() -> None:
    """What was read is shown again for a few seconds: scraping by many must not load the store."""
    metrics = PrometheusMetrics(CollectorRegistry())
    async with sf.Engine("memory://", drive=False, hooks=[metrics]) as engine:
        scans = 0
        store = engine.space.store
        scan = store.scan

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal scans
            scans += 1
            return scan(*args, **options)

        store.scan = counted  # type: ignore[method-assign]  # to count, not to replace
        await asyncio.gather(*(metrics.text() for _ in range(20)))
        first = scans
        await asyncio.gather(*(metrics.text() for _ in range(20)))
    assert 0 < first < 12
    assert scans == first


async def test_a_closed_engine_shows_no_gauges_and_its_counters_stay() -> None:
    """Numbers of the past stay true; those of now would not."""
    metrics = PrometheusMetrics(CollectorRegistry())
    async with sf.Engine("memory://", workflows=[pay], hooks=[metrics]) as engine:
        await (await engine.start(pay, 1)).result()
    found = await samples(metrics)
    assert found["standfast_runs_started_total", labelled(workflow="pay")] == 1
    assert ("standfast_store_up", ()) not in found


async def test_two_hooks_cannot_share_a_registry() -> None:
    """They would say everything twice."""
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(registry)


async def test_opentelemetry_has_the_same_instruments() -> None:
    """Names, labels and numbers are the same, whoever collects them."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(provider)
    async with sf.Engine("memory://", workflows=[pay], hooks=[metrics]) as engine:
        await (await engine.start(pay, 1)).result()
        await metrics.refresh()
        data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    found = {
        each.name: each for some in data.resource_metrics for scope in some.scope_metrics for each in scope.metrics
    }
    assert found.keys() <= {each.name for each in INSTRUMENTS}
    [started] = found["standfast_runs_started_total"].data.data_points
    assert (dict(started.attributes or {}), getattr(started, "value", None)) == ({"workflow": "pay"}, 1)
    [duration] = found["standfast_run_duration_seconds"].data.data_points
    assert (found["standfast_run_duration_seconds"].unit, getattr(duration, "count", None)) == ("s", 1)
    assert [getattr(each, "value", None) for each in found["standfast_store_up"].data.data_points] == [1]


def test_metrics_want_only_what_they_count() -> None:
    """A hook that hears everything would slow down what nobody counts."""
    metrics = PrometheusMetrics(CollectorRegistry())
    assert not metrics.wants(Event)
