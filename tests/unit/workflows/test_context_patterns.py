"""Many events, few runs: the last of a burst, or all of them together; none is lost and none is in two."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    EncodeError,
    RunFailedError,
    UnknownWorkflowError,
    WrongArgumentsError,
)
from standfast.testing.workflows import WorkflowEnvironment
from standfast.testing.workflows.mortal_store import Death
from standfast.workflows import debounce as collecting
from standfast.workflows.records import commit_over

if TYPE_CHECKING:
    from collections.abc import Callable

DONE: list[Any] = []
"""What the workflows were run with."""


@dataclass
class Document:
    """Something to index."""

    number: int
    text: str = ""


async def note(what: Any) -> None:
    """Do the expensive work."""
    DONE.append(what)


@sf.workflow
async def reindex(ctx: sf.Context, name: str, *, force: bool = False) -> str:
    """Work for ten seconds."""
    await ctx.step(note, name)
    await ctx.sleep("10 seconds")
    return f"{name}, forced" if force else name


@sf.workflow
async def index(ctx: sf.Context, documents: list[Document]) -> list[Document]:
    """Work on many at once."""
    await ctx.step(note, [each.number for each in documents])
    return documents


@sf.workflow(concurrency=1)
async def index_alone(ctx: sf.Context, numbers: list[int]) -> int:
    """Work for ten seconds, one run at a time."""
    await ctx.sleep("10 seconds")
    await ctx.step(note, numbers)
    return len(numbers)


@sf.workflow
async def broken(ctx: sf.Context, name: str) -> None:
    """Fail."""
    await ctx.now()
    raise LookupError(name)


SOON = sf.collect(reindex, sf.Debounce("5 seconds", max_wait="12 seconds"))
TOGETHER = sf.collect(index, sf.Batch(3, "30 seconds"))
ALONE = sf.collect(index_alone, sf.Batch(2, "30 seconds"))
BROKEN = sf.collect(broken, sf.Debounce("5 seconds"))


def environment(**options: Any) -> WorkflowEnvironment:
    """Return an environment that has all of these."""
    DONE.clear()
    workflows = [each for pattern in (SOON, TOGETHER, ALONE, BROKEN) for each in pattern.workflows]
    return WorkflowEnvironment(workflows, **options)


# --- debounce -------------------------------------------------------------------------------------------------------


async def test_only_the_last_event_of_a_burst_is_worked_on() -> None:
    """Each event takes the place of the one before, and all get the result of the last."""
    async with environment() as env:
        handles = [await SOON.start(env.client, "doc", name, force=True) for name in ("a", "b", "c")]
        await env.advance("20 seconds")
        assert [await run.result() for run in handles] == ["c, forced"] * 3
        assert DONE == ["c"]


async def test_each_event_lets_the_window_begin_anew() -> None:
    """Nothing is done before it has been quiet for as long as the window is."""
    async with environment() as env:
        for name in ("a", "b"):
            await SOON.start(env.client, "doc", name)
            await env.advance("4.9 seconds")
            assert DONE == []
        await env.advance("0.2 seconds")
        assert DONE == ["b"]


async def test_the_first_event_waits_for_no_longer_than_it_may() -> None:
    """A burst without an end is worked on now and then."""
    async with environment() as env:
        for second in range(25):
            await SOON.start(env.client, "doc", str(second))
            await env.advance("1 second")
        assert DONE == ["11", "23"]


async def test_work_that_has_begun_is_not_cancelled() -> None:
    """An event that comes during the work is worked on after its own window."""
    async with environment() as env:
        first = await SOON.start(env.client, "doc", "a")
        await env.advance("6 seconds")
        second = await SOON.start(env.client, "doc", "b")
        await env.advance("20 seconds")
        assert (await first.result(), await second.result(), DONE) == ("a", "b", ["a", "b"])


async def test_keys_have_nothing_to_do_with_each_other() -> None:
    """Events of another key neither replace nor put off."""
    async with environment() as env:
        await SOON.start(env.client, "doc-1", "a")
        await env.advance("3 seconds")
        await SOON.start(env.client, "doc-2", "b")
        await env.advance("2 seconds")
        assert DONE == ["a"]


async def test_a_burst_tells_all_its_events() -> None:
    """The history of its run has them, and the key is its tag."""
    async with environment() as env:
        for name in ("a", "b"):
            await SOON.start(env.client, "doc", name)
        await env.advance("20 seconds")
        [run] = (await env.client.list(tag="doc")).runs
        events = [entry.value for entry in await env.client.history(run.id) if entry.kind == "signal" and entry.value]
        assert (run.workflow, events) == ("reindex.debounce", [{"name": "a"}, {"name": "b"}])


async def test_a_failure_is_that_of_the_workflow() -> None:
    """Whoever asks for the result gets what the workflow raised."""
    async with environment() as env:
        run = await BROKEN.start(env.client, "doc", "a")
        await env.advance("10 seconds")
        with pytest.raises(RunFailedError) as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, LookupError)


# --- batch ----------------------------------------------------------------------------------------------------------


async def test_a_batch_is_run_when_it_is_full() -> None:
    """At once, with its items in their order; the next item begins another one."""
    async with environment() as env:
        handles = [await TOGETHER.add(env.client, Document(number)) for number in range(4)]
        await env.advance("1 second")
        assert await handles[0].result() == [Document(0), Document(1), Document(2)]
        assert [run.is_new for run in handles] == [True, False, False, True]
        assert DONE == [[0, 1, 2]]


async def test_a_batch_is_run_when_its_first_item_has_waited_long_enough() -> None:
    """Later items do not put it off."""
    async with environment() as env:
        await TOGETHER.add(env.client, Document(0))
        await env.advance("29 seconds")
        await TOGETHER.add(env.client, Document(1))
        await env.advance("1 second")
        assert DONE == [[0, 1]]


async def test_a_batch_of_one_is_run_at_once() -> None:
    """A size of one collects nothing."""
    single = sf.collect(index, sf.Batch(1, "1 day"))
    async with WorkflowEnvironment(single.workflows) as env:
        DONE.clear()
        for number in range(2):
            await single.add(env.client, Document(number))
        await env.advance("1 second")
        assert sorted(DONE) == [[0], [1]]


async def test_items_of_different_keys_are_never_in_one_batch() -> None:
    """Each key has a batch of its own."""
    async with environment() as env:
        for number in range(4):
            await TOGETHER.add(env.client, Document(number), key=f"tenant-{number % 2}")
        await env.advance("30 seconds")
        assert sorted(DONE) == [[0, 2], [1, 3]]


async def test_a_batch_that_a_limit_refuses_is_tried_again() -> None:
    """No item is lost because a run too many is unfinished."""
    async with environment() as env:
        handles = [await ALONE.add(env.client, number) for number in range(6)]
        await env.advance("2 minutes")
        assert [await run.result() for run in handles] == [2] * 6
        assert sorted(DONE) == [[0, 1], [2, 3], [4, 5]]


async def test_items_that_come_together_are_all_in_some_batch() -> None:
    """Many who add at once, from two engines: every item is in exactly one."""
    async with environment() as env:
        engines = (env.client, env.engine)
        await asyncio.gather(*(TOGETHER.add(engines[n % 2], Document(n)) for n in range(40)))
        await env.advance("31 seconds")
        assert Counter(number for batch in DONE for number in batch) == Counter(range(40))
        assert max(map(len, DONE)) == 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_no_item_is_lost_with_a_worker(when: Literal["before", "after"]) -> None:
    """Whatever commit a worker dies at, the items of its batch are worked on once."""
    for number in range(1, 8):
        async with environment() as env:
            for item in range(2):
                await TOGETHER.add(env.client, Document(item))
            env.life.dies = Death(when, env.life.commits + number)
            await env.advance("20 seconds")
            run = await TOGETHER.add(env.client, Document(2))
            assert await env.result(run) == [Document(0), Document(1), Document(2)], number
            env.life.dies = None


@pytest.mark.parametrize("pattern", ["batch", "debounce"])
async def test_an_event_that_meets_the_beginning_is_in_the_next_run(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """A run that is taken up right before an event would be put into its inbox has begun without it."""
    async with environment() as env:

        async def send(number: int) -> None:
            if pattern == "batch":
                await TOGETHER.add(env.client, Document(number))
            else:
                await SOON.start(env.client, "doc", str(number))

        async def after_the_beginning(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            await env.advance("31 seconds")
            return await commit_over(*args, **kwargs)

        await send(0)
        monkeypatch.setattr(collecting, "commit_over", after_the_beginning)
        await send(1)
        await env.advance("31 seconds")
        expected = [[0], [1]] if pattern == "batch" else ["0", "1"]
        assert expected == DONE


async def test_a_run_that_sleeps_after_it_has_begun_takes_no_more_items() -> None:
    """One that waits for a limit has its items; those that come then are in another one."""
    async with environment() as env:
        await ALONE.add(env.client, 1)
        await env.advance("25 seconds")
        await env.start(index_alone, [0])
        await env.advance("6.5 seconds")
        await ALONE.add(env.client, 2)
        await env.advance("1 minute")
        assert DONE == [[0], [1], [2]]


async def test_nothing_is_left_behind() -> None:
    """When a burst or a batch is over, no record of it but its runs is kept for long."""
    async with environment() as env:
        await SOON.start(env.client, "doc", "a")
        await TOGETHER.add(env.client, Document(1))
        await env.advance("2 days")
        for kind in ("collecting", "timer", "ready", "inbox"):
            assert not (await env.client.space.scan(*env.client.space.key(kind).within(), limit=5)).records, kind


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: sf.collect(print, sf.Debounce(1)),  # type: ignore[call-overload]  # what is tested
        lambda: sf.collect(reindex, sf.Queue()),  # type: ignore[call-overload]  # what is tested
        lambda: sf.collect(reindex, sf.Debounce(5, edge="leading")),
        lambda: sf.collect(reindex, sf.Debounce(5, key="user")),
        lambda: sf.collect(index, sf.Batch(3, 1, key="tenant")),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_declared(make: Callable[[], object]) -> None:
    """Something that is no workflow, a policy that collects nothing, and options that only actions know."""
    with pytest.raises(DeclarationError):
        make()


async def test_an_event_that_could_not_be_worked_on_is_refused() -> None:
    """Wrong arguments and items of a wrong type are not stored."""
    async with environment() as env:
        with pytest.raises(WrongArgumentsError):
            await SOON.start(env.client, "doc")  # type: ignore[call-arg]  # what is tested
        with pytest.raises(EncodeError):
            await TOGETHER.add(env.client, "text")  # type: ignore[arg-type]  # what is tested
        assert (await env.client.list()).runs == ()


async def test_an_engine_takes_them_like_workflows() -> None:
    """They bring along what they need, in a list as well as by their names."""
    named: dict[str, Any] = {SOON.name: SOON, TOGETHER.name: TOGETHER}
    async with sf.Engine("memory://", workflows=named) as engine:
        assert {name for name, _ in engine.runtime.workflows} == {
            "reindex",
            "reindex.debounce",
            "index",
            "index.batch",
        }


async def test_an_engine_that_could_not_work_on_an_event_refuses_it() -> None:
    """One that drives runs and was not given the helper says so at once."""
    async with sf.Engine("memory://", workflows=[reindex]) as engine:
        with pytest.raises(UnknownWorkflowError, match=r"reindex\.debounce"):
            await SOON.start(engine, "doc", "a")
