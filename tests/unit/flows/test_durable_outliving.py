"""Durable requests outlive what goes wrong around them: a store that fails, a process in front, a server's lock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from standfast.errors import ArbiterUnavailableError, LeaseTooShortError, RequestInterruptedError, StoreUnavailableError
from standfast.flows import durable
from standfast.flows import durable as outcomes
from standfast.flows.arbiter import in_store
from standfast.flows.events import last_number
from standfast.flows.server import RequestServer
from standfast.locks.heartbeat import remove
from standfast.workflows.engine import withdraw
from tests.conformance.arbiter_visits import force_out, fresh_name
from tests.conformance.dispatch_stage import ANN, Stage, arrival, names_of, result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.space import Space


LONG_BEFORE_THE_LEASE: Final = 5.0
"""Seconds within which a death is to be seen; the lease of a process is 30."""


@pytest.fixture
def stage() -> Stage:
    """What the actions do."""
    return Stage()


async def at_once(_activation: object, ask: Callable[[], Awaitable[object]]) -> object:
    """Ask the store once."""
    return await ask()


@pytest.mark.parametrize("insists", [True, False], ids=["asked again", "taken up again"])
async def test_a_request_does_not_fail_with_the_store(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, insists: bool
) -> None:
    """Around its action the store is asked again; if that does not help, its run is taken up again."""
    failures, ask = [1, 2], last_number

    async def fail_at_first(*args: object) -> int:
        if failures:
            failures.pop()
            raise StoreUnavailableError("memory", "it is away for a moment")
        return await ask(*args)  # type: ignore[arg-type] # handed on

    monkeypatch.setattr(durable, "last_number", fail_at_first)
    if not insists:
        monkeypatch.setattr(outcomes, "insist", at_once)
    async with sf.Dispatcher("memory://", [stage.flow]) as dispatcher:
        handle = await dispatcher.dispatch(arrival("queued", "a", durable=True))
        assert await result(handle) == "did a"
    assert (failures, stage.begun) == ([], ["a"])


async def test_a_request_whose_turn_was_lost_is_taken_up_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its action did not raise that: what is interrupted is to be run again, as it was declared."""
    losses, look = [1], last_number

    async def lose_at_first(*args: object) -> int:
        if losses:
            losses.pop()
            raise RequestInterruptedError("the request")
        return await look(*args)  # type: ignore[arg-type] # handed on

    monkeypatch.setattr(durable, "last_number", lose_at_first)
    async with sf.Dispatcher("memory://", [stage.flow]) as dispatcher:
        handle = await dispatcher.dispatch(arrival("queued", "a", durable=True))
        assert await result(handle) == "did a"
    assert (losses, stage.begun) == ([], ["a"])


async def test_a_request_is_not_stuck_behind_one_whose_process_dies(stage: Stage) -> None:
    """Nobody waits for it in any process, so a server that watches the processes lets the dead one fall."""
    name = f"memory://{fresh_name()}"
    async with sf.Dispatcher(name, [stage.flow]) as one, sf.Dispatcher(name, [stage.flow]) as two:
        stage.hold("a")
        first = await one.dispatch(arrival("queued", "a"))
        behind = await two.dispatch(arrival("queued", "b", durable=True))
        await _take_for_dead(one.engine.space)
        async with asyncio.timeout(LONG_BEFORE_THE_LEASE):
            assert await result(behind) == "did b"
        stage.release("a")
        with pytest.raises(RequestInterruptedError):
            await result(first)


async def test_a_request_is_not_stuck_behind_one_whose_process_has_died_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That death was news when nobody waited: so the server that puts it in line looks at those in front."""
    monkeypatch.setattr(in_store, "reap_lines_forever", nobody_goes_round)
    name = f"memory://{fresh_name()}"
    async with sf.Dispatcher(name, [stage.flow]) as one, sf.Dispatcher(name, [stage.flow]) as two:
        stage.hold("a")
        first = await one.dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        await _take_for_dead(one.engine.space)
        behind = await two.dispatch(arrival("queued", "b", durable=True))
        async with asyncio.timeout(LONG_BEFORE_THE_LEASE):
            assert await result(behind) == "did b"
        stage.release("a")
        with pytest.raises(RequestInterruptedError):
            await result(first)


async def nobody_goes_round(*_: object) -> None:
    """Look after no line."""


async def test_a_request_does_not_end_well_after_others_were_told_that_it_was_interrupted(stage: Stage) -> None:
    """Its server was only not heard of for a while: its caller is told the same, and its session is as it was."""
    name = f"memory://{fresh_name()}"
    async with sf.Dispatcher(name, [stage.flow]) as one, sf.Dispatcher(name, [stage.flow]) as two:
        stage.hold("a")
        handle = await one.dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        await _take_for_dead(one.engine.space)
        assert (await two.info(ANN, handle.id)).status == "interrupted"
        stage.release("a")
        with pytest.raises(RequestInterruptedError):
            await result(handle)
        assert await names_of(two) == []


async def test_a_key_that_is_used_again_after_an_interruption_is_done_once(stage: Stage) -> None:
    """The one that was taken for interrupted, and only waited, does not come back when it has its turn."""
    name = f"memory://{fresh_name()}"
    async with sf.Dispatcher(name, [stage.flow]) as one, sf.Dispatcher(name, [stage.flow]) as two:
        stage.hold("in front")
        front = await two.dispatch(arrival("queued", "in front"))
        sent = arrival("queued", "a", idempotency_key="k")
        first = await one.dispatch(sent)
        await _take_for_dead(one.engine.space)
        again = await two.dispatch(sent)
        stage.release("in front")
        await result(front)
        with pytest.raises(RequestInterruptedError):
            await result(first)
        assert (again.is_new, await result(again), stage.begun) == (True, "did a", ["in front", "a"])


async def test_a_server_that_is_not_the_sole_one_hands_its_requests_back(stage: Stage) -> None:
    """Their runs do not fail: whoever serves next drives them, and that may be the same one again."""
    async with sf.Dispatcher("memory://", [stage.flow], arbiter="local") as dispatcher:
        stage.hold("a")
        handle = await dispatcher.dispatch(arrival("queued", "a", durable=True))
        await stage.until_begun("a")
        await force_out(dispatcher.engine.space)
        stage.release("a")
        assert await result(handle) == "did a"
    assert stage.begun == ["a", "a"]


async def test_what_a_worker_may_not_drive_any_more_is_left_to_others() -> None:
    """A run that it has dropped, and whose code was withdrawn meanwhile, is not kept from those who have it."""
    url, stage = f"memory://{fresh_name()}", Stage()
    async with sf.Engine(url) as engine, sf.Dispatcher(engine, [stage.flow]) as dispatcher:
        stage.hold("a")
        handle = await dispatcher.dispatch(arrival("free", "a", durable=True))
        await stage.until_begun("a")
        withdraw(engine, *dispatcher._workflows.values())
        engine.runtime.loaded[handle.id].abandon()
        stage.release("a")
        async with sf.Dispatcher(url, [stage.flow]) as other:
            assert await result(await other.find(ANN, handle.id)) == "did a"
    assert stage.begun == ["a", "a"]


async def test_a_lease_that_the_store_is_too_slow_for_means_refusal(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has its turn cannot be decided then, and that is what the caller is told."""

    async def too_slow(_server: RequestServer) -> None:
        raise LeaseTooShortError(1.0, "one round trip to the store took 2 s")

    monkeypatch.setattr(RequestServer, "attend", too_slow)
    async with sf.Dispatcher("memory://", [stage.flow]) as dispatcher:
        with pytest.raises(ArbiterUnavailableError):
            await dispatcher.dispatch(arrival("queued", "a"))


async def _take_for_dead(space: Space) -> None:
    """Remove the presences of a process, as if it had not been heard of for long enough."""
    page = await space.scan(*space.key("presence", space.presence_name).within(), limit=100)
    for key in page.records:
        await remove(space.store, key)
