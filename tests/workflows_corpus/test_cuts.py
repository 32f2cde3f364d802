"""Histories that an operator cuts, at every place of every shape: what is left fits the code, or the cut is refused."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from msgspec import structs

from standfast.errors import DeclarationError
from standfast.events import Event, RunCodeDiffers, RunConflicts
from standfast.testing.workflows import WorkflowEnvironment
from standfast.testing.workflows.observations import outcome_of
from standfast.workflows.activation import Activation
from standfast.workflows.context import Context
from standfast.workflows.records import HEADERS, RUN_STATES, HistoryEvent, RunKeys, RunState, events_of
from standfast.workflows.replay import cut_at, cut_for_retry
from tests.workflows_corpus.corpus import CORPUS
from tests.workflows_corpus.of_locks import LOSING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import standfast as sf
    from standfast.workflows.records import Header
    from tests.workflows_corpus.shape import Shape

    Cut = Callable[[], list[HistoryEvent]]

S = TypeVar("S", bound=str | None)
T = TypeVar("T")

each_shape = pytest.mark.parametrize("shape", [*CORPUS, *LOSING], ids=lambda shape: shape.name)
GO_ON_FROM = re.compile(r"resume from '(.+)'")


def forks(run_id: str, events: list[HistoryEvent]) -> Iterator[tuple[str, Cut]]:
    """Yield every fork, and every retry from a step: at each operation that is recorded."""
    for step in dict.fromkeys(event.id for event in events if event.kind != "update"):
        for fork in (True, False):
            how = "fork" if fork else "retry --step"
            yield f"{how} {step}", partial(cut_at, run_id, events, step, fork=fork)


def retries(run_id: str, state: RunState, events: list[HistoryEvent]) -> Iterator[tuple[str, Cut]]:
    """Yield every retry: of a run that failed by each failure in its history, and of one that was stopped anywhere."""
    stopped = structs.replace(state, status="cancelled", failure=None)
    for place, event in enumerate(events):
        until = events[: place + 1]
        if event.failure is not None:
            failed = structs.replace(state, status="failed", failure=event.failure)
            yield f"retry after {event.kind} {event.id}", partial(cut_for_retry, run_id, failed, events)
        yield f"retry after {place + 1} marks", partial(cut_for_retry, run_id, stopped, until)
    yield "retry", partial(cut_for_retry, run_id, state, events)


def within_locks(events: list[HistoryEvent]) -> list[str]:
    """Return the locks that are held at the end of a history."""
    held = [event.id for event in events if event.kind == "held"]
    return [each for each in held if not any((event.kind, event.id) == ("released", each) for event in events)]


async def run_of(env: WorkflowEnvironment, shape: Shape) -> sf.Run[Any]:
    """Let a run of a shape, and everything that it started, come to the end."""
    if shape.before is not None:
        shape.before()
    run = await env.start(shape.workflow, *shape.args, id="the-run")
    if shape.script is not None:
        await shape.script(env, run)
    await outcome_of(env, run)
    await env.advance("3 days")
    return run


@each_shape
async def test_what_is_left_of_a_history_that_is_cut_anywhere_fits_the_code(shape: Shape) -> None:
    """Every cut that fork or retry makes is replayed to its end; if it is refused, the place that is named is not."""
    wrong: list[str] = []
    async with WorkflowEnvironment([shape.workflow, *shape.workflows]) as env:
        await run_of(env, shape)
        space = env.client.space
        page = await space.scan(*space.key("life").within(), limit=1_000)
        for record in page.records.values():
            keys = RunKeys(space, record.key.parts[-1])
            header = HEADERS.decode((await space.read(keys.header)).records[keys.header].value)
            state, events = RUN_STATES.decode(record.value), await events_of(space, keys)
            for what, cut in (*forks(keys.id, events), *retries(keys.id, state, events)):
                found = cut_or_elsewhere(keys.id, events, cut)
                if held := within_locks(found):
                    wrong.append(f"{keys.id}: {what}: {held} is held no more")
                if problem := await mismatch(env, keys, header, state, found):
                    wrong.append(f"{keys.id}: {what}: {problem} ({[(event.kind, event.id) for event in found]})")
    assert wrong == []


@each_shape
async def test_a_run_goes_on_from_every_place_at_which_it_is_forked_or_retried(shape: Shape) -> None:
    """The code fits what is left, records are accepted, and nothing is held in the end by those that have ended."""
    heard: list[Event] = []
    async with WorkflowEnvironment([shape.workflow, *shape.workflows], linger=0, hooks=[heard.append]) as env:
        run = await run_of(env, shape)
        before = await run.info()
        for number, step in enumerate(await operations(env, run.id)):
            fork = await or_elsewhere(step, partial(env.client.fork, run.id, id=f"fork-{number}"))
            await settled(env, fork.id)
            if shape.script is None:
                assert (await env.client.get(fork.id)).status == before.status
        for at in (None, *await operations(env, run.id)):
            is_there = at is None or at in await operations(env, run.id)
            if is_there and (await run.info()).status != "completed":
                await or_elsewhere(at, lambda step: env.client.retry(run.id, step=step))
                await settled(env, run.id)
        wrong = [event for event in heard if isinstance(event, RunCodeDiffers | RunConflicts)]
    assert wrong == []


async def settled(env: WorkflowEnvironment, run_id: str) -> None:
    """Let a run come to its end; if it waits for something that nobody sends, cancel it."""
    await env.advance("3 days")
    if not (await env.client.get(run_id)).has_ended:
        await env.client.cancel(run_id, "it waits in vain")
        await env.advance("3 days")
    assert (await env.client.get(run_id)).has_ended
    await check_index(env)


async def check_index(env: WorkflowEnvironment) -> None:
    """See that the index of runs is what a look at every run says."""
    space = env.client.space
    pages = [await space.scan(*space.key(kind).within(), limit=1_000) for kind in ("runs", "tagged", "life", "own")]
    listed, tagged, lives, owned = ([key.parts[3:] for key in page.records] for page in pages)
    runs = [await env.client.get(name) for (name,) in lives]
    assert {(run.status, run.workflow, f"{run.changed_at:016d}", run.id) for run in runs if not run.owner} == {*listed}
    assert {(tag, run.status, f"{run.changed_at:016d}", run.id) for run in runs for tag in run.tags} == {*tagged}
    assert {(run.owner, run.id) for run in runs if run.owner} == {*owned}


async def operations(env: WorkflowEnvironment, run_id: str) -> list[str]:
    """Return the operations of a run, in order."""
    events = await events_of(env.client.space, RunKeys(env.client.space, run_id))
    return list(dict.fromkeys(event.id for event in events if event.kind != "update"))


async def or_elsewhere(step: S, cut: Callable[[S | str], Awaitable[T]]) -> T:
    """Cut at a step; if that is refused, where the refusal says."""
    try:
        return await cut(step)
    except DeclarationError as refused:
        return await cut(named_in(refused))


def cut_or_elsewhere(run_id: str, events: list[HistoryEvent], cut: Cut) -> list[HistoryEvent]:
    """Cut a history; if that is refused, cut it where the refusal says."""
    try:
        return cut()
    except DeclarationError as refused:
        return cut_at(run_id, events, named_in(refused), fork=False)


def named_in(refused: DeclarationError) -> str:
    """Return the step that a refusal tells to go on from."""
    named = GO_ON_FROM.search(str(refused))
    if named is None:
        raise refused
    return named[1]


async def mismatch(
    env: WorkflowEnvironment, keys: RunKeys, header: Header, state: RunState, events: list[HistoryEvent]
) -> str:
    """Replay a history, doing nothing; return what does not fit."""
    workflow: Any = env.client.runtime.workflows[state.workflow, state.version]
    copy = Activation(env.client.runtime, keys, workflow, header, state, None, events)
    copy.context = Context(copy)
    await copy.run_code()
    if copy.mismatch is not None:
        return str(copy.mismatch)
    return "" if copy.replay.is_over else f"left over: {copy.replay.left_over()}"
