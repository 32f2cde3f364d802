"""Links and unclaimed ends as a real collector gets them: over OTLP and gRPC, from spans that are made lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import standfast as sf
from tests.integration.telemetry.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path


@sf.workflow
async def hears(ctx: sf.Context) -> str:
    """Wait for a signal."""
    heard: str = await ctx.wait_signal("go")
    return heard


async def test_a_collector_gets_links_and_runs_that_no_worker_had(tmp_path: Path) -> None:
    """The wait for a signal links to its sender; a run that was cancelled before any claim has its root span."""
    with Receiver() as receiver:
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{receiver.port}", insecure=True)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=100))
        hook = sf.admin.TracingHook(provider)
        url = f"sqlite:///{tmp_path}/links.db"
        async with sf.Engine(url, workflows=[hears], hooks=[hook], drive=False) as client:
            await client.start(hears, id="unneeded")
            await client.cancel("unneeded", force=True)
        async with sf.Engine(url, workflows=[hears], hooks=[hook]) as engine:
            run = await engine.start(hears, id="r")
            with provider.get_tracer("test").start_as_current_span("sender") as sender:
                await run.signal("go", "tea")
            assert await run.result() == "tea"
        provider.shutdown()
        receiver.wait_for("run hears")

    [wait] = [span for span in receiver.spans if span.name == "wait signal"]
    assert [int.from_bytes(link.span_id) for link in wait.links] == [sender.get_span_context().span_id]
    roots = [span for span in receiver.spans if span.name == "run hears" and not span.parent_span_id]
    runs = {each.value.string_value for span in roots for each in span.attributes if each.key == "standfast.run.id"}
    assert runs == {"unneeded", "r"}
