"""Signals, and starting what is to be signalled."""

from __future__ import annotations

import asyncio

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    EncodeError,
    IdempotencyKeyPurgedError,
    RunNotFoundError,
    StartOrSignalConflictError,
    WorkflowAlreadyExistsError,
    WorkflowTerminalError,
)
from tests.unit.workflows.engines import WORKFLOWS, acts, collects, engine, until


@sf.workflow
async def goes_on(ctx: sf.Context, times: int) -> str:
    """Take a signal, and go on as a new run."""
    taken: str = await ctx.wait_signal("item")
    if times:
        await ctx.continue_as_new(times - 1)
    return taken


async def test_a_signal_waits_for_whoever_asks_for_it(url: str) -> None:
    """Signals that come before the run waits for them are taken in the order in which they were sent."""
    async with engine(url, drive=False) as client:
        run = await client.start(collects, 3)
        for number in range(3):
            assert await run.signal("item", number)
        async with engine(url):
            assert await run.result() == [0, 1, 2]


async def test_a_signal_with_an_id_is_sent_once(url: str) -> None:
    """The same id means the same signal, also when it comes again after the run has taken it, and ended."""
    async with engine(url) as opened:
        run = await opened.start(collects, 2)
        assert await run.signal("item", "a", signal_id="1")
        assert not await run.signal("item", "a", signal_id="1")
        assert await run.signal("item", "b", signal_id="2")
        assert await run.result() == ["a", "b"]
        assert not await run.signal("item", "a", signal_id="1")


async def test_ids_of_signals_are_per_name(url: str) -> None:
    """The same id under another name is another signal."""
    async with engine(url, drive=False) as client:
        run = await client.start(collects, 1)
        assert await run.signal("item", signal_id="1")
        assert await run.signal("other", signal_id="1")
        assert await run.signal("item", signal_id="1 ")


async def test_many_signals_at_once_arrive_in_the_order_of_the_calls(url: str) -> None:
    """Signals that meet are written together; none is lost, none is doubled."""
    async with engine(url) as opened:
        run = await opened.start(collects, 300)
        answers = await asyncio.gather(*(run.signal("item", n, signal_id=str(n // 2)) for n in range(600)))
        assert sum(answers) == 300
        assert await run.result() == list(range(0, 600, 2))


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", 7])
async def test_what_is_no_name_is_refused(url: str, name: str) -> None:
    """A signal's name is 1 to 100 printable characters."""
    async with engine(url, drive=False) as client:
        run = await client.start(collects, 1)
        with pytest.raises(DeclarationError, match="printable"):
            await run.signal(name)


@pytest.mark.parametrize("signal_id", ["", "x" * 129, "é" * 65, "\ud800", 7])
async def test_what_is_no_id_is_refused(url: str, signal_id: str) -> None:
    """A signal's id is 1 to 128 bytes of UTF-8."""
    async with engine(url, drive=False) as client:
        run = await client.start(collects, 1)
        with pytest.raises(DeclarationError, match="128"):
            await run.signal("item", signal_id=signal_id)


async def test_a_value_that_cannot_be_stored_is_refused_before_anything_is_written(url: str) -> None:
    """Nothing lies in the inbox when the value is refused."""
    async with engine(url) as opened:
        run = await opened.start(collects, 1)
        with pytest.raises(EncodeError):
            await run.signal("item", object())
        await run.signal("item", 1)
        assert await run.result() == [1]


async def test_a_run_that_has_ended_takes_no_signals(url: str) -> None:
    """It is told at once, and so is one that never was."""
    async with engine(url) as opened:
        run = await opened.start(acts, [])
        await run.result()
        with pytest.raises(WorkflowTerminalError):
            await run.signal("item")
        with pytest.raises(RunNotFoundError):
            await opened.signal("nobody", "item")


async def test_a_signal_follows_a_run_that_went_on_as_a_new_one(url: str) -> None:
    """Whoever has the first id of a chain reaches the run that is at its end, once for each signal id."""
    async with engine(url, workflows=[*WORKFLOWS, goes_on]) as opened:
        run = await opened.start(goes_on, 1, id="a")
        await run.signal("item", "first", signal_id="1")
        await until(opened, "a", "completed")
        assert not await run.signal("item", "first", signal_id="1")
        assert await run.signal("item", "second", signal_id="2")
        assert await run.result() == "second"


@sf.workflow
async def one_by_one(ctx: sf.Context, left: int) -> str:
    """Take one signal, and leave the others to the next run."""
    ctx.on_update("ask", lambda: left)
    taken: str = await ctx.wait_signal("item")
    if left:
        await ctx.continue_as_new(left - 1)
    return taken


async def test_what_a_run_has_not_taken_is_there_for_the_run_as_which_it_goes_on(url: str) -> None:
    """Signals that lie in the inbox are taken later in the chain, in the order in which they were sent."""
    async with engine(url, drive=False, workflows=[one_by_one]) as client:
        run = await client.start(one_by_one, 4, id="a")
        for value in "abc":
            await run.signal("item", value)
        async with engine(url, workflows=[one_by_one]) as worker:
            for link in ("a", "a~2", "a~3"):
                await until(worker, link, "completed")
            assert await run.update("ask") == 1
            await run.signal("item", "d")
            await run.signal("item", "e")
            assert await run.result() == "e"


# --- start or signal ----------------------------------------------------------------------------------------------


async def test_a_run_is_started_with_its_first_signal(url: str) -> None:
    """The first call starts the run, the next ones signal it, and no signal is missing."""
    async with engine(url) as opened:
        first, how = await opened.start_or_signal(collects, 2, id="a", signal="item", value=1)
        again, then = await opened.start_or_signal(collects, 99, id="a", signal="item", value=2)
        assert (how, then, first.is_new, again.is_new) == ("started", "signalled", True, False)
        assert await first.result() == [1, 2]


async def test_of_many_who_start_or_signal_one_starts(url: str) -> None:
    """All signals of callers that race each other in several engines arrive."""
    async with engine(url) as one, engine(url) as two, engine(url, drive=False) as three:
        met = await asyncio.gather(
            *(
                each.start_or_signal(collects, 30, id="a", signal="item", value=n, signal_id=str(n))
                for n in range(30)
                for each in ((one, two, three)[n % 3],)
            )
        )
        assert [how for _, how in met].count("started") == 1
        assert sorted(await one.result("a")) == list(range(30))


async def test_starting_or_signalling_a_run_that_has_ended_is_refused(url: str) -> None:
    """By default nothing takes the place of a run that has ended."""
    async with engine(url) as opened:
        await (await opened.start(acts, [], id="a")).result()
        with pytest.raises(StartOrSignalConflictError):
            await opened.start_or_signal(acts, [], id="a", signal="item")


async def test_a_new_run_can_take_the_id_of_one_that_has_ended(url: str) -> None:
    """It begins with nothing but its signal; and a call that is repeated starts nothing a second time."""
    async with engine(url) as opened:

        async def add(value: str) -> tuple[sf.Run[list[str]], str]:
            return await opened.start_or_signal(
                collects, 1, id="a", signal="item", value=value, signal_id=value, on_terminal="start_new"
            )

        run, _ = await add("first")
        assert await run.result() == ["first"]
        run, how = await add("second")
        assert (how, await run.result()) == ("started", ["second"])
        assert (await add("first"))[1] == (await add("second"))[1] == "signalled"
        assert len(await run.history()) == 1


async def test_a_new_run_can_take_the_place_of_a_whole_chain(url: str) -> None:
    """A chain that has ended is deleted as one."""
    async with engine(url, workflows=[one_by_one]) as opened:
        run = await opened.start(one_by_one, 1, id="a")
        await run.signal("item", "a")
        await run.signal("item", "b")
        assert await run.result() == "b"
        again, how = await opened.start_or_signal(
            one_by_one, 0, id="a", signal="item", value="c", signal_id="c", on_terminal="start_new"
        )
        assert (how, await again.result()) == ("started", "c")
        assert [each.id for each in (await opened.list()).runs] == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"id": "a", "idempotency_key": "k"},
        {"id": "a", "on_terminal": "start_new"},
        {"idempotency_key": "k", "signal_id": "1", "on_terminal": "start_new"},
        {"id": "a", "on_terminal": "ignore"},
    ],
)
async def test_what_cannot_be_started_or_signalled_is_refused(url: str, wrong: dict[str, str]) -> None:
    """Which run is meant must be said, and a new one in place of an old one needs to be safe to repeat."""
    async with engine(url, drive=False) as client:
        with pytest.raises(DeclarationError):
            await client.start_or_signal(collects, 1, signal="item", **wrong)  # type: ignore[call-overload] # wrong on purpose
        assert not (await client.list()).runs


async def test_a_run_of_another_workflow_is_not_signalled(url: str) -> None:
    """An id that belongs to something else is a mistake, not a target."""
    async with engine(url, drive=False) as client:
        await client.start(acts, [], id="a")
        with pytest.raises(WorkflowAlreadyExistsError, match="workflow"):
            await client.start_or_signal(collects, 1, id="a", signal="item")


async def test_an_idempotency_key_names_the_run_to_signal(url: str) -> None:
    """The same key reaches the same run, until that was purged."""
    async with engine(url) as opened:
        run, _ = await opened.start_or_signal(collects, 2, idempotency_key="k", signal="item", value=1)
        same, how = await opened.start_or_signal(collects, 2, idempotency_key="k", signal="item", value=2)
        assert (same.id, how, await run.result()) == (run.id, "signalled", [1, 2])
        await opened.purge(run.id)
        with pytest.raises(IdempotencyKeyPurgedError):
            await opened.start_or_signal(collects, 2, idempotency_key="k", signal="item")
