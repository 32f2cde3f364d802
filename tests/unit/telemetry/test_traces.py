"""Traces: each span once, with an id that follows from the run, whoever did the work."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import fastapi
import httpx
import pytest
from msgspec import structs
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON, ParentBased

import standfast as sf
from standfast.errors import DeclarationError, RunFailedError
from standfast.events import Event, RunMoved
from standfast.ids import new_id
from standfast.telemetry.traces import TracingHook
from standfast.trace_context import RunTrace
from standfast.workflows.messages import signal_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@contextlib.contextmanager
def asked_of(hook: TracingHook, caller: Any, request_id: str, action: str) -> Iterator[None]:
    """Trace what is done in the block as a request, as a task of a flow does."""
    request = hook.request(caller, request_id, action)
    try:
        yield
    except BaseException as problem:
        request.end(type(problem))
        raise
    request.end()


class Traced:
    """A provider of traces, and what it exported."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """What was exported."""
        return self.exporter.get_finished_spans()

    def hook(self, **options: Any) -> TracingHook:
        """Return a hook that exports to it."""
        return TracingHook(self.provider, **options)


def shape(spans: Iterable[ReadableSpan]) -> list[tuple[str, int, int | None]]:
    """Return names, ids and parents."""
    return sorted(
        (span.name, span.context.span_id, None if span.parent is None else span.parent.span_id)
        for span in spans
        if span.context is not None
    )


def ids(spans: Iterable[ReadableSpan]) -> list[int]:
    """Return the ids of spans."""
    return [span.context.span_id for span in spans if span.context is not None]


def check_whole(spans: Iterable[ReadableSpan], *known: int) -> None:
    """Refuse a span that was exported twice, and one whose parent is missing."""
    found = list(spans)
    assert len(set(ids(found))) == len(found)
    assert {span.parent.span_id for span in found if span.parent is not None} <= {*ids(found), *known}
    assert len({span.context.trace_id for span in found if span.context is not None}) <= 1


@pytest.fixture
def traced() -> Traced:
    """Where spans of the test go."""
    return Traced()


fails_left = [0]


@sf.step(retry=sf.Retry(attempts=3, delay=0.001))
async def charge(order: str) -> str:
    """Fail as often as the test wants."""
    if fails_left[0]:
        fails_left[0] -= 1
        raise ValueError(order)
    return order


def plain(order: str) -> str:
    """Run in a thread."""
    return order


@sf.workflow
async def ships(ctx: sf.Context, order: str) -> str:
    """Be a child."""
    return await ctx.step(plain, order)


@sf.workflow
async def fulfil(ctx: sf.Context, order: str) -> str:
    """Do something of every kind."""
    await ctx.step(charge, order)
    async with ctx.mutex("stock"):
        await ctx.gather(ctx.step(plain, "a"), ctx.step(plain, "b"))
    await ctx.child(ships, order)
    await ctx.sleep(0.01)
    await ctx.wait_signal("go")
    return order


async def driven(url: str, traced: Traced, *, stops: bool = False) -> None:
    """Let a run of every kind come to its end, with one engine or with two."""
    waits = asyncio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, RunMoved) and event.run == "r" and event.status == "suspended" and "go" in event.about:
            waits.set()

    at_once, hooks = sf.admin.WorkerLimits(linger=0), [traced.hook(), watch]
    options: dict[str, Any] = {"workflows": [fulfil, ships], "worker": at_once, "hooks": hooks}
    async with sf.Engine(url, **options) as engine:
        run = await engine.start(fulfil, "tea", id="r")
        await waits.wait()
        if not stops:
            await run.signal("go")
            assert await run.result() == "tea"
            return
    async with sf.Engine(url, **options) as engine:
        await engine.run("r").signal("go")
        assert await engine.run("r").result() == "tea"


async def test_a_run_is_one_trace_with_each_span_once(traced: Traced) -> None:
    """Steps, waits, holds, claims, the child and the run itself."""
    await driven(f"memory://{new_id()}", traced)
    check_whole(traced.spans)
    names = [span.name for span in traced.spans]
    assert {name for name in names if not name.startswith(("claim", "start"))} == {
        "step charge",
        "step plain",
        "wait lock",
        "hold",
        "wait child",
        "wait sleep",
        "wait signal",
        "run fulfil",
        "run ships",
    }
    by_name = {span.name: span for span in traced.spans}
    [root] = [span for span in traced.spans if span.parent is None]
    assert root.name == "run fulfil"
    child = by_name["run ships"]
    assert child.parent is not None
    assert root.context is not None
    assert child.parent.span_id == root.context.span_id
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in traced.spans)
    assert by_name["step charge"].attributes == {
        "standfast.run.id": "r",
        "standfast.workflow": "fulfil",
        "standfast.step.id": "charge",
        "standfast.attempt": 1,
    }


async def test_another_process_makes_the_same_spans(tmp_path: Path) -> None:
    """The ids follow from the run, so a trace has one shape; a run that was replayed exports nothing again."""
    one, other = Traced(), Traced()
    await driven(f"sqlite:///{tmp_path}/one.db", one)
    await driven(f"sqlite:///{tmp_path}/other.db", other, stops=True)
    check_whole(other.spans)
    assert [each for each in shape(one.spans) if each[0] != "claim"] == [
        each for each in shape(other.spans) if each[0] != "claim"
    ]


async def test_attempts_are_spans_with_the_type_of_the_error(traced: Traced) -> None:
    """Its message may hold anything, and is left out."""
    fails_left[0] = 3

    @sf.workflow
    async def pays(ctx: sf.Context) -> None:
        await ctx.step(charge, "password=hunter2")

    async with sf.Engine("memory://", workflows=[pays], hooks=[traced.hook()]) as engine:
        with pytest.raises(RunFailedError):
            await (await engine.start(pays)).result()
    steps = [span for span in traced.spans if span.name == "step charge"]
    assert [(span.attributes or {})["standfast.attempt"] for span in steps] == [1, 2, 3]
    assert {span.status.description for span in steps} == {"builtins.ValueError"}
    [run] = [span for span in traced.spans if span.name == "run pays"]
    assert run.status.status_code is otel.StatusCode.ERROR
    assert "hunter2" not in str([span.to_json() for span in traced.spans])


async def test_spans_of_a_step_belong_to_it(traced: Traced) -> None:
    """Those of async code and those of plain functions, which run in threads."""

    async def inside() -> None:
        with traced.tracer.start_as_current_span("own"):
            pass

    def inside_thread() -> None:
        with traced.tracer.start_as_current_span("own thread"):
            pass

    @sf.workflow
    async def works(ctx: sf.Context) -> None:
        await ctx.step(inside)
        await ctx.step(inside_thread)

    async with sf.Engine("memory://", workflows=[works], hooks=[traced.hook()]) as engine:
        await (await engine.start(works)).result()
    check_whole(traced.spans)
    parents = {span.context.span_id: span.name for span in traced.spans if span.context is not None}
    own = {span.name: parents[span.parent.span_id] for span in traced.spans if span.parent and "own" in span.name}
    assert own == {"own": "step inside", "own thread": "step inside_thread"}


async def test_a_run_belongs_to_the_trace_of_whoever_starts_it(traced: Traced) -> None:
    """The caller's span is the parent of the run's."""
    async with sf.Engine("memory://", workflows=[ships], hooks=[traced.hook()]) as engine:
        with traced.tracer.start_as_current_span("caller") as caller:
            run = await engine.start(ships, "tea")
        await run.result()
    check_whole(traced.spans)
    [span] = [span for span in traced.spans if span.name == "run ships"]
    assert span.parent is not None
    assert span.parent.span_id == caller.get_span_context().span_id


async def test_what_is_not_sampled_is_not_exported() -> None:
    """By the sampler of the provider, and by the caller's own word."""
    silent = Traced(sampler=ALWAYS_OFF)
    async with sf.Engine("memory://", workflows=[ships], hooks=[silent.hook()]) as engine:
        await (await engine.start(ships, "tea")).result()
    assert silent.spans == ()


async def test_requests_that_are_not_sampled_are_not_exported_but_are_current() -> None:
    """What is begun in one belongs to its trace, and is not sampled either."""
    silent, seen = Traced(sampler=ParentBased(ALWAYS_OFF)), []
    with asked_of(silent.hook(), None, "q-1", "shop.order"):
        seen.append(otel.get_current_span().get_span_context())
        silent.tracer.start_span("inside").end()
    assert silent.spans == ()
    assert seen[0].is_valid
    assert not seen[0].trace_flags.sampled
    assert not otel.get_current_span().get_span_context().is_valid


def test_a_request_in_a_request_belongs_to_it(traced: Traced) -> None:
    """Whether or not anything has asked for the span of the outer one before."""
    hook = traced.hook()
    with asked_of(hook, None, "q-1", "shop.outer"), asked_of(hook, None, "q-2", "shop.inner"):
        traced.tracer.start_span("inside").end()
    spans = {span.name: span for span in traced.spans}
    above = {name: span.parent and span.parent.span_id for name, span in spans.items()}
    known = {name: span.context.span_id for name, span in spans.items() if span.context is not None}
    assert above == {
        "inside": known["request shop.inner"],
        "request shop.inner": known["request shop.outer"],
        "request shop.outer": None,
    }
    check_whole(traced.spans)


async def test_code_of_a_run_between_its_steps_belongs_to_the_request_it_is_run_in(traced: Traced) -> None:
    """A run that is driven inside a request does not hide the span of the request."""
    hook = traced.hook()
    trace = RunTrace(("main", "", "r", 0))
    with asked_of(hook, None, "q-1", "shop.order"):
        outside = otel.get_current_span().get_span_context()
        token = hook.enter_run(trace, "r")
        inside = otel.get_current_span().get_span_context()
        traced.tracer.start_span("inside").end()
        hook.leave(token)
    assert inside.is_valid
    assert inside.span_id == outside.span_id
    assert traced.spans[0].parent is not None
    assert traced.spans[0].parent.span_id == outside.span_id


@pytest.mark.parametrize("current_is_sampled", [True, False])
def test_the_sampler_is_not_swayed_by_what_is_current(current_is_sampled: bool) -> None:  # noqa: FBT001 -- a case of pytest
    """Two workers decide alike about a run, whatever happens to be current where each has taken it up."""
    around = Traced(sampler=DEFAULT_ON if current_is_sampled else ALWAYS_OFF)
    asked = Traced(sampler=ParentBased(ALWAYS_OFF)).hook()
    with around.tracer.start_as_current_span("around"):
        assert not asked.is_sampled(1)


def test_a_request_that_raises_is_an_error_of_that_type(traced: Traced) -> None:
    """The type of the exception is told, never its message."""
    with pytest.raises(KeyError), asked_of(traced.hook(), None, "q-1", "shop.order"):
        raise KeyError("a secret")
    (span,) = traced.spans
    assert (span.status.status_code, span.status.description) == (otel.StatusCode.ERROR, "KeyError")
    assert "secret" not in span.to_json()


flow = sf.Flow("shop", concurrency="allow")


@flow.action
async def order(request: sf.Request, item: str) -> str:
    """Start a run that has a child."""
    run = await request.start(fulfils, item)
    return await run.result()


@flow.action(durable=True)
async def later(request: sf.Request, item: str) -> str:
    """Run as a workflow."""
    del request
    return item


@sf.workflow
async def fulfils(ctx: sf.Context, item: str) -> str:
    """Have a child."""
    return await ctx.child(ships, item)


@pytest.mark.parametrize("header", [CALLER, "", "00-zz-zz-01", "ff" + CALLER[2:], CALLER + "-more"])
@pytest.mark.parametrize("action", ["order", "later"])
async def test_a_call_over_http_is_one_trace_from_the_caller_to_the_child(
    traced: Traced, header: str, action: str
) -> None:
    """Through FastAPI, an action, a durable run and its child; a malformed header begins a trace of its own."""
    engine = sf.Engine(f"memory://{new_id()}", workflows=[fulfils, ships], hooks=[traced.hook()])
    app = sf.App(engine, flows=[flow])
    api = fastapi.FastAPI()
    api.mount("/api", app)
    transport = httpx.ASGITransport(app=api)
    headers = {"Authorization": f"Bearer {app.token}", "Prefer": "wait=10"} | (
        {"traceparent": header} if header else {}
    )
    async with app, httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        answer = await client.post(f"/api/flows/shop/{action}", json={"item": "tea"}, headers=headers)
        assert answer.json() == "tea", answer.text
    spans = traced.spans
    is_known = header == CALLER
    check_whole(spans, *([int(CALLER[36:52], 16)] if is_known else []))
    assert {"request shop.order", "run fulfils", "run ships"} <= {span.name for span in spans} or action == "later"
    assert any(span.name == "run shop.later" for span in spans) or action == "order"
    found = {span.context.trace_id for span in spans if span.context is not None}
    assert (found == {int(CALLER[3:35], 16)}) == is_known


def test_a_provider_that_exports_nothing_is_refused_with_the_way_out() -> None:
    """Without a provider of the SDK there would be no trace, and no word about it."""
    with pytest.raises(DeclarationError, match=r"opentelemetry\.sdk\.trace"):
        TracingHook(otel.NoOpTracerProvider())
    assert sf.admin.TracingHook is TracingHook


async def test_commits_are_spans_if_they_are_asked_for(traced: Traced) -> None:
    """Each transaction of the store is one."""
    async with sf.Engine("memory://", workflows=[ships], hooks=[traced.hook(commits=True)]) as engine:
        await (await engine.start(ships, "tea")).result()
    commits = [span for span in traced.spans if span.name == "commit"]
    assert len(commits) > 2
    assert {(span.attributes or {})["standfast.backend"] for span in commits} == {"memory"}


@sf.workflow
async def hears(ctx: sf.Context) -> str:
    """Wait for a signal, and take an update before it."""

    def add(number: int) -> int:
        return number + 1

    ctx.on_update("add", add)
    heard: str = await ctx.wait_signal("go")
    return heard


async def test_signals_and_updates_link_to_the_spans_of_their_senders(traced: Traced, tmp_path: Path) -> None:
    """Whoever receives them, in whichever process: the context lies in the inbox, and then in the history."""
    url = f"sqlite:///{tmp_path}/linked.db"
    async with sf.Engine(
        url, workflows=[hears], hooks=[traced.hook()], worker=sf.admin.WorkerLimits(linger=0)
    ) as engine:
        run = await engine.start(hears, id="r")
        with traced.tracer.start_as_current_span("updater") as updater:
            assert await run.update("add", 1) == 2
        async with sf.Engine(url, drive=False, hooks=[traced.hook()]) as client:
            with traced.tracer.start_as_current_span("sender") as sender:
                await client.run("r").signal("go", "tea")
        assert await run.result() == "tea"

    by_name = {span.name: span for span in traced.spans}
    linked = {name: [link.context.span_id for link in by_name[name].links] for name in ("wait signal", "update add")}
    assert linked == {
        "wait signal": [sender.get_span_context().span_id],
        "update add": [updater.get_span_context().span_id],
    }
    check_whole(span for span in traced.spans if span.name not in ("updater", "sender"))


async def test_a_signal_that_was_sent_without_a_trace_links_to_nothing(traced: Traced) -> None:
    """So does one with a context that cannot be read: a run is never stopped by that."""
    async with sf.Engine("memory://", workflows=[hears], hooks=[traced.hook()]) as engine:
        run = await engine.start(hears, id="r")
        malformed = structs.replace(signal_of("go", "tea", None), trace="00-nonsense")
        await engine.runtime.inboxes.send("r", malformed)
        assert await run.result() == "tea"

    [wait] = [span for span in traced.spans if span.name == "wait signal"]
    assert wait.links == ()


async def test_a_run_that_ends_before_any_worker_had_it_is_a_trace_too(traced: Traced) -> None:
    """One that is cancelled, and one that waited too long for its turn at a limit: the run and its start, no claim."""

    @sf.workflow(concurrency=sf.Limit(1, on_limit="queue", ttl="50ms"))
    async def limited(ctx: sf.Context) -> str:
        heard: str = await ctx.wait_signal("go")
        return heard

    async with sf.Engine("memory://", workflows=[hears], hooks=[traced.hook()], drive=False) as engine:
        await engine.start(hears, id="unneeded")
        await engine.cancel("unneeded", "it is not needed", force=True)
    async with sf.Engine("memory://", workflows=[limited], hooks=[traced.hook()]) as engine:
        first = await engine.start(limited, id="first")
        late = await engine.start(limited, id="late")
        with pytest.raises(sf.errors.StandfastError):
            await late.result(timeout=10)
        await first.signal("go", "tea")
        await first.result()

    for run in ("unneeded", "late"):
        spans = [span for span in traced.spans if (span.attributes or {}).get("standfast.run.id") == run]
        assert sorted(span.name.split()[0] for span in spans) == ["run", "start"], run
        check_whole(spans)
