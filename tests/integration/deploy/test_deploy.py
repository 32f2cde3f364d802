"""What lies in ``deploy/`` is taken by its own linters, and by a real Prometheus that scrapes a worker and a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped] # it comes without types

from standfast.telemetry.instruments import INSTRUMENTS
from tests import services
from tests.services.places import MissingError
from tests.services.prometheus import promtool

if TYPE_CHECKING:
    from collections.abc import Generator

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "standfast.json"
TOKEN = "a-token-of-thirty-characters-1"  # noqa: S105 -- made for this test
WITHIN = 40.0
NAMES = re.compile(r"\bstandfast_[a-z_]+")

PROGRAM = """
import asyncio
import standfast as sf

STOCK = sf.KeyFamily("stock")

@sf.step
async def charge(number: int) -> int:
    if number == 13:
        raise ValueError(number)
    return number

@sf.workflow
async def fulfil(ctx: sf.Context, number: int) -> int:
    async with ctx.mutex(STOCK("apples")):
        return await ctx.step(charge, number)

engine = sf.Engine("sqlite:///jobs.db", workflows=[fulfil])
desk = sf.Flow("desk")

@desk.action(concurrency="queue")
async def greet(request: sf.Request, name: str) -> str:
    return f"hello {name}"

app = sf.App("sqlite:///desk.db", flows=[desk])

async def start() -> None:
    await engine.open(drive=False)
    for number in range(12, 15):
        await engine.start(fulfil, number)
    await engine.aclose()
"""

SETTINGS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: worker
    static_configs: [{{targets: ["{worker}"]}}]
  - job_name: server
    metrics_path: /metrics
    authorization: {{credentials: {token}}}
    static_configs: [{{targets: ["{server}"]}}]
"""


def checked(*command: str | Path) -> str:
    """Run a linter; fail with what it says."""
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tool(name: str) -> Path:
    """Return a linter that came with the tests."""
    return Path(sys.executable).with_name(name)


def named_in(text: str) -> set[str]:
    """Return the metrics that a text names, as they are declared."""
    known = {each.name for each in INSTRUMENTS}
    found = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in known else name for name in NAMES.findall(text)}
    return {name for name in found if name != "standfast_worker"}


def expressions() -> list[str]:
    """Return what the panels of the dashboard ask for, with its variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [each["expr"] for panel in panels for each in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$job", ".*") for each in asked]


def test_the_image_is_taken_by_hadolint() -> None:
    """Not one complaint."""
    assert checked(tool("hadolint"), DEPLOY / "docker" / "Dockerfile") == ""


def test_the_manifest_is_taken_by_the_schemas_of_kubernetes() -> None:
    """All but what is KEDA's own, which has no schema there."""
    told = checked(tool("kubernetes-validate"), DEPLOY / "kubernetes" / "standfast.yaml")
    assert told.count(" passed for resource ") == 3
    assert told.count("Couldn't find schema") == told.count("keda.sh/v1alpha1") == 2


def test_the_scaled_object_has_the_fields_that_keda_reads() -> None:
    """As its definition has them: counts are numbers, all metadata is text, and what it names is there."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "standfast.yaml").read_text()))
    by_kind = {each["kind"]: each for each in documents}
    scaled, auth = by_kind["ScaledObject"], by_kind["TriggerAuthentication"]
    spec, [trigger] = scaled["spec"], scaled["spec"]["triggers"]
    counts = {"minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"}

    assert scaled["apiVersion"] == auth["apiVersion"] == "keda.sh/v1alpha1"
    assert spec.keys() == counts | {"scaleTargetRef", "triggers"}
    assert all(type(spec[each]) is int for each in counts)
    assert spec["minReplicaCount"] <= spec["maxReplicaCount"]
    assert spec["scaleTargetRef"] == {"name": by_kind["Deployment"]["metadata"]["name"]}
    assert trigger.keys() == {"type", "metadata", "authenticationRef"}
    assert trigger["type"] == "metrics-api"
    assert {"url", "valueLocation", "targetValue", "authMode"} == trigger["metadata"].keys()
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert trigger["authenticationRef"] == {"name": auth["metadata"]["name"]}
    [secret] = auth["spec"]["secretTargetRef"]
    assert secret.keys() == {"parameter", "name", "key"}
    assert secret["parameter"] == "token"  # what the mode "bearer" of this trigger reads
    [container] = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    kept = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
    assert {"name": secret["name"], "key": secret["key"]} in kept
    service = by_kind["Service"]["metadata"]["name"]
    assert trigger["metadata"]["url"].startswith(f"http://{service}:")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_taken_by_systemd(tmp_path: Path) -> None:
    """With a program that exists in place of yours."""
    unit = (DEPLOY / "systemd" / "standfast-worker@.service").read_text()
    copy = tmp_path / "standfast-worker@.service"
    copy.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit))
    assert checked("systemd-analyze", "verify", copy).strip() == ""
    assert "Type=notify" in unit
    assert "--listen 127.0.0.1:" in unit


def test_rules_and_dashboard_name_only_metrics_that_exist() -> None:
    """A rule on a metric that was renamed never fires, and nobody notices."""
    known = {each.name for each in INSTRUMENTS}
    assert named_in(ALERTS.read_text()) <= known
    assert named_in("\n".join(expressions())) <= known
    assert len(named_in("\n".join(expressions()))) > 35


@pytest.mark.services
def test_the_rules_are_taken_by_promtool() -> None:
    """Ten of them, and settings that name them."""
    try:
        program = promtool()
    except MissingError as missing:
        services.require(None, f"promtool ({missing})")
        raise
    assert "10 rules found" in checked(program, "check", "rules", ALERTS)
    assert "SUCCESS" in checked(program, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")


@contextmanager
def running(folder: Path, *command: str) -> Generator[str]:
    """Run ``standfast`` with a port for scrapes; return where that is."""
    environment = {**os.environ, "STANDFAST_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
    environment.pop("STANDFAST_METRICS_TOKEN", None)
    options: Any = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "standfast", *command], **options) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"probes and metrics at http://([0-9.:]+)/", line):
                    yield found.group(1)
                    break
            else:
                pytest.fail("it did not begin to listen")
        finally:
            process.terminate()
            process.communicate(timeout=20)


class Prometheus:
    """A Prometheus that is asked."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **parameters: str) -> Any:
        """Ask its API."""
        return self._client.get(f"/api/v1/{path}", params=parameters).raise_for_status().json()["data"]

    def until(self, query: str) -> list[Any]:
        """Ask until there is an answer."""
        deadline = time.monotonic() + WITHIN
        while time.monotonic() < deadline:
            if self._client.get("/-/ready").is_success and (found := self.get("query", query=query)["result"]):
                return list(found)
        pytest.fail(f"Prometheus never answered {query}")


@pytest.mark.services
def test_a_real_prometheus_scrapes_a_worker_and_a_server_and_loads_every_rule(tmp_path: Path) -> None:
    """Values arrive, every rule is evaluated without an error, and every panel of the dashboard can be drawn."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "-c", "import asyncio, shop; asyncio.run(shop.start())"], cwd=tmp_path, check=True)
    with (
        running(tmp_path, "worker", "shop:engine", "--listen", "0") as worker,
        running(tmp_path, "serve", "shop:app", "--port", "0", "--listen", "0") as server,
    ):
        assert httpx.get(f"http://{worker}/health/ready").json() == {"status": "ok"}
        assert httpx.get(f"http://{server}/health/ready").json() == {"status": "ok"}
        settings = tmp_path / "prometheus.yml"
        settings.write_text(SETTINGS.format(alerts=ALERTS, worker=worker, server=server, token=TOKEN))
        with (
            services.private("prometheus", behind=str(settings)) as started,
            httpx.Client(base_url=started.url, timeout=10) as client,
        ):
            prometheus = Prometheus(client)
            [ended] = prometheus.until('standfast_runs_ended_total{outcome="completed"} == 2')
            [failed] = prometheus.until('standfast_runs_ended_total{outcome="failed"} == 1')
            assert (ended["metric"]["workflow"], failed["metric"]["job"]) == ("fulfil", "worker")
            assert {each["metric"]["job"] for each in prometheus.until("count by (job) (up == 1) == 1")} >= {"worker"}
            prometheus.until('standfast_store_up{job="server"} == 1')
            prometheus.until("standfast_workers == 1")
            prometheus.until('standfast_lock_hold_seconds_count{family="stock"} == 3')
            prometheus.until("histogram_quantile(0.99, standfast_commit_seconds_bucket) > 0")
            told = prometheus.get("metadata")
            assert named_in(ALERTS.read_text()) | named_in("\n".join(expressions())) <= {
                *told,
                *(f"{each}_total" for each in told),
            }
            for asked in expressions():
                prometheus.get("query", query=asked)  # it can be parsed and answered
            deadline = time.monotonic() + WITHIN
            while True:
                [group] = prometheus.get("rules")["groups"]
                if all(rule["health"] == "ok" for rule in group["rules"]):
                    break
                assert time.monotonic() < deadline, [rule.get("lastError") for rule in group["rules"]]
            assert len(group["rules"]) == 10
