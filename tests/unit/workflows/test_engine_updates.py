"""Updates and queries: asking a run for something, wherever it is."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    RunFailedError,
    RunNotFoundError,
    StoreUnavailableError,
    UpdateTimeoutError,
    UpdateValidationError,
    WorkflowTerminalError,
)
from standfast.workflows.inbox import AnswerWaits
from standfast.workflows.messages import update_of
from tests.unit.workflows.engines import WORKFLOWS, acts, engine, until


@sf.workflow
async def account(ctx: sf.Context, enough: int) -> list[int]:
    """Collect amounts until there is enough."""
    amounts: list[int] = []

    def positive(amount: int) -> None:
        if amount < 1:
            raise ValueError("it must be positive")

    def deposit(amount: int) -> int:
        if amount == 13:
            raise OverflowError("13")
        amounts.append(amount)
        return sum(amounts)

    ctx.on_update("deposit", deposit, validate=positive)
    ctx.on_query("amounts", lambda: list(amounts))
    await ctx.wait_until(lambda: sum(amounts) >= enough)
    return amounts


@sf.workflow
async def mixed(ctx: sf.Context, count: int) -> list[Any]:
    """Note signals and updates in the order in which they are seen."""
    seen: list[Any] = []
    ctx.on_update("note", seen.append)
    ctx.on_query("seen", lambda: list(seen))
    for _ in range(count):
        seen.append(await ctx.wait_signal("item"))  # noqa: PERF401 -- updates come in between
    return seen


@sf.workflow
async def picky(ctx: sf.Context) -> list[str]:
    """Wait for 1; 13 cannot even be looked at."""
    number = 0
    caught: list[str] = []

    def put(value: int) -> None:
        nonlocal number
        number = value

    def is_one() -> bool:
        if number == 13:
            raise OverflowError("13")
        return number == 1

    ctx.on_update("put", put)
    while True:
        try:
            return [*caught, str(await ctx.wait_until(is_one))]
        except OverflowError as problem:
            caught.append(str(problem))
            await ctx.wait_signal("go")


@sf.workflow
async def answers_later(ctx: sf.Context, what: str) -> None:
    """Answer by functions that would have to be waited for."""

    async def answer() -> int:
        return 1

    if what == "update":
        ctx.on_update("number", answer)
    elif what == "validate":
        ctx.on_update("number", lambda: 1, validate=answer)
    else:
        ctx.on_query("number", answer)


def bank(url: str, **options: Any) -> sf.Engine:
    """Return an engine that keeps accounts."""
    return engine(url, **{"workflows": [*WORKFLOWS, account, mixed, picky, answers_later], **options})


async def test_an_update_is_answered(url: str) -> None:
    """The handler's result comes back; what it changed lets the run go on."""
    async with bank(url) as opened:
        run = await opened.start(account, 10)
        assert await run.update("deposit", 4) == 4
        assert await run.update("deposit", 6) == 10
        assert await run.result() == [4, 6]


async def test_an_update_that_is_refused_changes_nothing(url: str) -> None:
    """What the validator raises reaches the caller, and the history shows no trace."""
    async with bank(url) as opened:
        run = await opened.start(account, 10)
        with pytest.raises(UpdateValidationError, match="positive"):
            await run.update("deposit", -1)
        with pytest.raises(OverflowError):
            await run.update("deposit", 13)
        assert await run.query("amounts") == []


async def test_an_update_loads_a_run_that_is_not_in_memory(url: str) -> None:
    """A suspended run is woken, answers, and its answer is there for whoever asks again."""
    async with bank(url, drive=False) as client, bank(url) as worker:
        run = await client.start(account, 10)
        await until(client, run.id, "suspended")
        assert await run.update("deposit", 4, update_id="1") == 4
        await until(client, run.id, "suspended")
        assert worker.runtime.loaded.keys() <= {run.id}
        assert await run.update("deposit", 4, update_id="1") == 4
        assert await run.query("amounts") == [4]


async def test_an_update_with_an_id_is_done_once(url: str) -> None:
    """Sent again, at the same time or after the run has ended, it has the same answer and no effect."""
    async with bank(url) as opened:
        run = await opened.start(account, 10)
        answers = await asyncio.gather(*(run.update("deposit", 10, update_id="1") for _ in range(5)))
        assert answers == [10] * 5
        assert await run.result() == [10]
        assert await run.update("deposit", 10, update_id="1") == 10


async def test_a_run_that_has_ended_takes_no_updates(url: str) -> None:
    """It is told at once; and so is whoever waits for an answer when the run ends without one."""
    async with bank(url) as opened:
        run = await opened.start(acts, [])
        await run.result()
        with pytest.raises(WorkflowTerminalError):
            await run.update("deposit", 1)
        other = await opened.start(account, 1)
        asking = asyncio.create_task(other.update("nothing", timeout=50))
        await until(opened, other.id, "suspended")
        await other.update("deposit", 1)
        with pytest.raises(WorkflowTerminalError):
            await asking
        with pytest.raises(RunNotFoundError):
            await opened.update("nobody", "deposit", 1)


async def test_an_update_without_a_handler_times_out_and_says_what_there_is(url: str) -> None:
    """The error names the handlers of a run that is in memory here."""
    async with bank(url, linger=60) as opened:
        run = await opened.start(account, 10)
        await run.update("deposit", 1)
        with pytest.raises(UpdateTimeoutError, match="deposit") as caught:
            await run.update("depoist", 1, timeout=0.05)
        assert caught.value.known == ("deposit",)


async def test_whoever_asks_when_the_store_has_just_failed_for_another_is_answered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure ends the one look that all share, and the next one who asks begins another."""
    async with engine(url, workflows=[account]) as opened:
        run = await opened.start(account, 10)
        look_at, late, failed = AnswerWaits._look_at, list[asyncio.Task[Any]](), list[bool]()

        async def fail_once(waits: AnswerWaits, run_id: str, update_ids: list[str]) -> None:
            if not failed:
                failed.append(True)
                late.append(asyncio.create_task(waits.of(run_id, "late")))
                raise StoreUnavailableError("the store", "it refused to read")
            await look_at(waits, run_id, update_ids)

        monkeypatch.setattr(AnswerWaits, "_look_at", fail_once)
        with pytest.raises(StoreUnavailableError):
            await run.update("nothing", timeout=50)
        await opened.runtime.inboxes.send(run.id, update_of("deposit", (10,), "late"))
        assert (await asyncio.wait_for(late[0], 10)).how == "accepted"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_whoever_asks_is_told_if_an_eager_task_fails_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that looks for all has failed before it is kept; the caller gets that, and the next one is answered."""
    async with bank(url) as opened:
        run = await opened.start(account, 2)
        look_at, failed = AnswerWaits._look_at, list[bool]()

        async def fail_once(waits: AnswerWaits, run_id: str, update_ids: list[str]) -> None:
            if not failed:
                failed.append(True)
                raise StoreUnavailableError("the store", "it refused to read")
            await look_at(waits, run_id, update_ids)

        monkeypatch.setattr(AnswerWaits, "_look_at", fail_once)
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 -- not in the oldest Python
        try:
            with pytest.raises(StoreUnavailableError):
                await asyncio.wait_for(opened.runtime.answers.of(run.id, "late"), 10)
            assert await run.update("deposit", 10) == 10
        finally:
            loop.set_task_factory(None)


async def test_many_updates_at_once_are_answered_in_the_order_of_the_calls(url: str) -> None:
    """None is lost, none is doubled, and each sees those before it."""
    async with bank(url) as opened:
        run = await opened.start(account, 120)
        answers = await asyncio.gather(*(run.update("deposit", 1) for _ in range(120)))
        assert answers == list(range(1, 121))
        assert len(await run.result()) == 120


async def test_signals_and_updates_have_the_same_order_on_replay(url: str) -> None:
    """What the run's variables were when each came is the same for a copy that is made from the history."""
    async with bank(url) as opened, bank(url, drive=False) as elsewhere:
        run = await opened.start(mixed, 11)
        sends = [run.signal("item", n) if n % 2 else run.update("note", n) for n in range(20)]
        await asyncio.gather(*sends)
        await run.signal("item", 20)
        seen = await run.result()
        assert await elsewhere.query(run.id, "seen") == seen
        assert sorted(seen) == list(range(21))


async def test_a_query_is_answered_wherever_the_run_is(url: str) -> None:
    """Driven here, driven elsewhere, suspended, or ended: the answer is the same, and leaves no trace."""
    async with bank(url, linger=60) as here, bank(url, drive=False) as elsewhere:
        run = await here.start(account, 5)
        await run.update("deposit", 4)
        assert await here.query(run.id, "amounts") == await elsewhere.query(run.id, "amounts") == [4]
        before = await run.history()
        await run.update("deposit", 1)
        await run.result()
        assert await elsewhere.query(run.id, "amounts") == [4, 1]
        assert (await run.history())[: len(before)] == before


async def test_a_query_without_a_handler_says_what_there_is(url: str) -> None:
    """The error names those that the run answers."""
    async with bank(url) as opened:
        run = await opened.start(account, 5)
        with pytest.raises(DeclarationError, match="amounts"):
            await run.query("amount")
        with pytest.raises(RunNotFoundError):
            await opened.query("nobody", "amounts")


async def test_a_predicate_that_raises_does_so_where_it_is_waited_for(url: str) -> None:
    """The run's code can catch it, and does so again when it is replayed."""
    async with bank(url) as opened:
        run = await opened.start(picky)
        await until(opened, run.id, "suspended")
        await run.update("put", 13)
        await run.update("put", 1)
        await until(opened, run.id, "suspended")
        await run.signal("go")
        assert await run.result() == ["13", "True"]


async def test_a_predicate_holds_when_the_wait_for_it_is_over(url: str) -> None:
    """Without a time limit it is waited for until it is true for the code that waits."""
    async with bank(url, drive=False) as client:
        run = await client.start(picky)
        numbers = [asyncio.ensure_future(run.update("put", number, timeout=20)) for number in (1, 2)]
        inbox = client.space.key("inbox")
        while len((await client.space.scan(*inbox.within(), limit=10)).records) < 2:  # noqa: ASYNC110 -- both are sent
            await asyncio.sleep(0)
        async with bank(url) as worker:
            await asyncio.gather(*numbers)
            assert (await until(worker, run.id, "suspended", "completed")).status == "suspended"
            await run.update("put", 1)
            assert await run.result() == ["True"]


@pytest.mark.parametrize("what", ["update", "validate", "query"])
async def test_handlers_that_would_have_to_be_waited_for_are_refused(what: str, url: str) -> None:
    """They are plain functions; the error says so where one is declared."""
    async with bank(url) as opened:
        run = await opened.start(answers_later, what)
        with pytest.raises(RunFailedError, match="plain function"):
            await run.result()
