"""A worker that is killed in the middle of a run, seen by a collector: one whole trace, as if nothing had happened."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from tests.integration.cli.programs import PATIENCE, Program
from tests.integration.telemetry.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.heavy  # real processes that are killed: once, on the default interpreter

MODULE = """
import asyncio, os
import standfast as sf
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
exporter = OTLPSpanExporter(endpoint=os.environ["RECEIVER"], insecure=True)
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=50))

async def charge():
    return "charged"

async def pack():
    print("packing", flush=True)
    if "HANG" in os.environ:
        await asyncio.Event().wait()

@sf.workflow
async def ships(ctx):
    await ctx.step(charge)

@sf.workflow
async def fulfil(ctx):
    await ctx.step(charge)
    await ctx.child(ships)
    await ctx.gather(ctx.step(charge), ctx.step(pack))
    await ctx.sleep(0.05)
    await ctx.step(charge)

hooks = [sf.admin.TracingHook(provider)]
engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[fulfil, ships], hooks=hooks, drive=False,
                   worker=sf.admin.WorkerLimits(linger=0))
"""


def started(url: str, folder: Path, port: int, **environment: str) -> Program:
    """Start a worker whose spans go to a receiver."""
    known = {"RECEIVER": f"127.0.0.1:{port}", **environment}
    return Program(url, "worker", "traced:engine", "--app-dir", str(folder), "--quiet", environment=known)


async def traced(url: str, folder: Path, *, kills: bool) -> list[tuple[str, str, str, str]]:
    """Return the spans of a run as they arrived, whose worker is killed in a step or is not."""
    with Receiver() as receiver:
        async with sf.Engine(url, drive=False) as engine:
            run = await engine.start("fulfil", id="order-7", unknown="start")
            if kills:
                first = started(url, folder, receiver.port, HANG="yes")
                assert first.hear() == "packing"
                receiver.wait_for("run ships")  # what has ended, and is still in the exporter's memory, dies with it
                first.process.kill()
                first.end()
            second = started(url, folder, receiver.port)
            await run.result(timeout=PATIENCE)
            receiver.wait_for("run fulfil")
            second.send(signal.SIGTERM)
            second.end()
    return [(span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) for span in receiver.spans]


async def test_a_run_that_was_taken_over_is_the_same_trace(tmp_path: Path) -> None:
    """Each span once, all parents present, and the ids of a run that nothing has disturbed."""
    (tmp_path / "traced.py").write_text(MODULE)
    calm = await traced(f"sqlite:///{tmp_path}/calm.db", tmp_path, kills=False)
    killed = await traced(f"sqlite:///{tmp_path}/killed.db", tmp_path, kills=True)
    for spans in (calm, killed):
        known = [span_id for _, _, span_id, _ in spans]
        assert len(set(known)) == len(known)
        assert {parent for *_, parent in spans if parent} <= set(known)
        assert len({trace_id for _, trace_id, _, _ in spans}) == 1
    assert {name for name, *_ in killed} >= {"run fulfil", "run ships", "step charge", "step pack", "wait sleep"}
    assert sorted(span for span in killed if span[0] != "claim") == sorted(span for span in calm if span[0] != "claim")
