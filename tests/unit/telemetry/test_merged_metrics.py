"""Metrics of several processes as those of one: sums that never fall, and gauges that say what they mean."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from standfast.telemetry.merged_metrics import MergedMetrics, families_in

ONE = """\
# HELP standfast_steps_total Steps.
# TYPE standfast_steps_total counter
standfast_steps_total{workflow="a b {c}",outcome="completed"} 3.0
# HELP standfast_step_seconds How long.
# TYPE standfast_step_seconds histogram
standfast_step_seconds_bucket{le="0.1"} 2.0
standfast_step_seconds_bucket{le="+Inf"} 3.0
standfast_step_seconds_count 3.0
standfast_step_seconds_sum 0.5
# HELP standfast_runs_loaded Runs.
# TYPE standfast_runs_loaded gauge
standfast_runs_loaded 4.0
# HELP standfast_runs_ready Runs.
# TYPE standfast_runs_ready gauge
standfast_runs_ready 7.0
# HELP standfast_worker_utilisation Share.
# TYPE standfast_worker_utilisation gauge
standfast_worker_utilisation 0.5
# HELP standfast_store_up Up.
# TYPE standfast_store_up gauge
standfast_store_up 1.0
"""
OTHER = ONE.replace(" 3.0", " 10.0").replace("loaded 4.0", "loaded 1.0").replace("isation 0.5", "isation 1.0")


def samples(text: str) -> dict[str, float]:
    """Return all samples, as they are written."""
    return {sample: value for family in families_in(text).values() for sample, value in family.samples.items()}


def test_counters_add_up_and_gauges_do_as_they_mean() -> None:
    """What Prometheus' own parser reads, too."""
    merged = MergedMetrics()
    merged.take(1, 100, ONE)
    merged.take(2, 200, OTHER.replace("store_up 1.0", "store_up 0.0").replace("ready 7.0", "ready 8.0"))
    text = merged.text([1, 2])
    found = samples(text)

    assert found['standfast_steps_total{workflow="a b {c}",outcome="completed"}'] == 13
    assert (found['standfast_step_seconds_bucket{le="+Inf"}'], found["standfast_step_seconds_sum"]) == (13, 1.0)
    assert (found["standfast_runs_loaded"], found["standfast_runs_ready"]) == (5, 8)
    assert (found["standfast_worker_utilisation"], found["standfast_store_up"]) == (0.75, 0)
    assert {each.name for each in text_string_to_metric_families(text)} >= {"standfast_steps", "standfast_step_seconds"}


def test_what_a_process_counted_that_has_ended_stays_in_the_sums() -> None:
    """While it is missing, and when another one with its number begins at nothing; its gauges go with it."""
    merged = MergedMetrics()
    merged.take(1, 100, ONE)
    merged.take(2, 200, ONE)
    steps = 'standfast_steps_total{workflow="a b {c}",outcome="completed"}'
    alone = samples(merged.text([2]))
    merged.take(1, 101, ONE.replace(" 3.0", " 1.0"))
    again = samples(merged.text([1, 2]))
    none = samples(merged.text([]))

    assert (alone[steps], again[steps], none[steps]) == (6, 7, 7)
    assert (alone["standfast_runs_loaded"], again["standfast_runs_loaded"]) == (4, 8)
    assert "standfast_runs_loaded" not in none
