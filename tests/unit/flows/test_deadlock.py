"""Requests that would wait for each other: through a key, through a limit, and crosswise."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import QueueTimeoutError, RequestFailedError, WaitsForItselfError
from standfast.flows import concurrency_limits as rooms
from standfast.flows import task as tasks
from standfast.flows.deadlock import BlockedRequest, DeadlockSearch
from tests.conformance.arbiter_visits import fresh_name

if TYPE_CHECKING:
    from standfast.flows.handle import Handle
    from standfast.flows.request import Address

SOON = 15.0
ARBITERS = pytest.mark.parametrize("arbiter", ["local", "shared"])

K: Address = ("request", "default", "session", "k")
L: Address = ("limit", "l", "name")
M: Address = ("limit", "m", "name")


class World:
    """``limited`` needs its session and then the room; ``calls`` has the room and calls ``queued`` in a session."""

    def __init__(self, most: int = 1, **options: Any) -> None:
        self.flow, self.room = sf.Flow("f"), sf.Limit(most, name="room", ttl=None)
        self.server: sf.Dispatcher | None = None
        self.elsewhere: sf.Dispatcher | None = None
        self.called: Handle
        self.may_call, self.may_end = asyncio.Event(), asyncio.Event()
        queue = sf.Queue(timeout=None)
        self.flow.action(concurrency=queue, limits=self.room, name="limited", **options)(self._limited)
        self.flow.action(limits=self.room, name="calls")(self._calls)
        self.flow.action(concurrency=queue, name="queued")(self._limited)
        self.flow.action(limits=self.room, name="again")(self._again)
        self.flow.action(concurrency=queue, name="blocks")(self._blocks)

    async def _blocks(self, _request: sf.Request) -> None:
        await self.may_end.wait()

    async def _limited(self, _request: sf.Request) -> str:
        return "done"

    async def _calls(self, _request: sf.Request) -> str:
        await self.may_call.wait()
        self.called = await self.dispatch("queued", "k", self.elsewhere)
        return str(await self.called.result())

    async def _again(self, _request: sf.Request, times: int) -> int:
        if times:
            await (await self.dispatch("again", times=times - 1)).result()
        return times

    async def dispatch(
        self, action: str, session: str = "", by: sf.Dispatcher | None = None, *, attended: bool = True, **inputs: Any
    ) -> Handle:
        """Dispatch a request of an action."""
        server = by or self.server
        assert server is not None
        sent = sf.Call(flow="f", action=action, session=session, inputs=inputs, attended=attended)
        return await asyncio.wait_for(server.dispatch(sent), SOON)


def limits_of(server: sf.Dispatcher) -> Any:
    """Return the limits of a server."""
    return server._serving().limits


async def until_one_waits(server: sf.Dispatcher) -> None:
    """Wait until somebody waits who holds something."""
    async with asyncio.timeout(SOON):
        while not len(limits_of(server).deadlocks):  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0)


@ARBITERS
async def test_a_circle_of_a_key_and_a_limit_is_refused_at_once_when_the_called_one_closes_it(arbiter: Any) -> None:
    """It is refused to wait for the key of one that waits for the room of its caller; the others go on."""
    world = World()
    async with sf.Dispatcher("memory://", [world.flow], arbiter=arbiter) as world.server:
        calls = await world.dispatch("calls")
        limited = await world.dispatch("limited", "k")
        assert limited.status == "waiting"
        world.may_call.set()

        with pytest.raises(RequestFailedError) as failed:
            await calls.result(SOON)
        assert isinstance(failed.value.__cause__, WaitsForItselfError)
        assert failed.value.__cause__.key == "session 'k'"
        assert await limited.result(SOON) == "done"
        assert len(limits_of(world.server).deadlocks) == 0


@ARBITERS
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_a_circle_is_refused_at_once_if_tasks_are_eager(arbiter: Any) -> None:
    """The called request is refused before the task that runs it is known to its maker."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 -- not in the oldest Python
    await test_a_circle_of_a_key_and_a_limit_is_refused_at_once_when_the_called_one_closes_it(arbiter)


@pytest.mark.parametrize(("arbiter", "durable"), [("local", False), ("local", True), ("shared", False)])
async def test_a_circle_that_a_stranger_closes_is_at_the_cost_of_the_one_that_was_called(
    arbiter: Any,
    durable: bool,  # noqa: FBT001 -- it has a name
) -> None:
    """The stranger has called nobody, and may have been accepted durably; of a run in the store nobody here knows."""
    world = World(durable=durable)
    async with sf.Dispatcher("memory://", [world.flow], arbiter=arbiter) as world.server:
        await world.dispatch("blocks", "k")
        calls = await world.dispatch("calls")
        limited = await world.dispatch("limited", "k")
        world.may_call.set()
        await until_one_waits(world.server)
        world.may_end.set()

        with pytest.raises(RequestFailedError) as failed:
            await calls.result(SOON)
        assert isinstance(failed.value.__cause__, WaitsForItselfError)
        assert await limited.result(SOON) == "done"
        assert (world.called.status, len(limits_of(world.server).deadlocks)) == ("refused", 0)


@ARBITERS
async def test_a_request_that_is_called_uses_room_that_is_free_besides_that_of_its_caller(arbiter: Any) -> None:
    """Only where there is none left would it wait for itself."""
    world = World(2)
    async with sf.Dispatcher("memory://", [world.flow], arbiter=arbiter) as world.server:
        assert await (await world.dispatch("again", times=1)).result(SOON) == 1
        with pytest.raises(RequestFailedError) as failed:
            await (await world.dispatch("again", times=2)).result(SOON)
        inner = failed.value.__cause__
        assert isinstance(inner, RequestFailedError)
        assert "the limit 'room'" in str(inner)
        assert await (await world.dispatch("again", times=1)).result(SOON) == 1


@ARBITERS
async def test_nobody_waits_for_a_request_without_a_caller_that_needs_the_room_it_has_itself(arbiter: Any) -> None:
    """It was accepted, and is run as soon as whoever has the room has ended."""
    world, refused = World(), list[Any]()

    async def waits(_request: sf.Request) -> None:
        handle = await world.dispatch("limited", "k", attended=False)
        with pytest.raises(WaitsForItselfError, match="the limit 'room'"):
            await handle.result(SOON)
        refused.append(handle)

    world.flow.action(limits=world.room)(waits)
    async with sf.Dispatcher("memory://", [world.flow], arbiter=arbiter) as world.server:
        await (await world.dispatch("waits")).result(SOON)
        assert await refused[0].result(SOON) == "done"


async def test_a_circle_over_two_processes_ends_when_the_called_one_has_waited_for_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though both were declared to wait as long as it takes."""
    monkeypatch.setattr(tasks, "LONGEST", 0.05)
    world, url = World(), f"memory://{fresh_name()}"
    async with sf.Dispatcher(url, [world.flow]) as world.server, sf.Dispatcher(url, [world.flow]) as world.elsewhere:
        calls = await world.dispatch("calls")
        limited = await world.dispatch("limited", "k")
        world.may_call.set()

        with pytest.raises(RequestFailedError) as failed:
            await calls.result(SOON)
        assert isinstance(failed.value.__cause__, QueueTimeoutError)
        assert await limited.result(SOON) == "done"


async def test_a_request_that_is_called_does_not_wait_for_room_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it holds something, and others may wait for that."""
    monkeypatch.setattr(rooms, "LONGEST", 0.05)
    world = World()
    chain = (("request", "another", "session", "s"),)
    async with sf.Dispatcher("memory://", [world.flow]) as world.server:
        await world.dispatch("calls")
        sent = sf.Call(flow="f", action="limited", chain=chain)
        with pytest.raises(QueueTimeoutError):
            await (await world.server.dispatch(sent)).result(SOON)
        world.may_call.set()


# --- the circle itself ------------------------------------------------------------------------------------------------


def waiter(name: str, wants: Address, *holds: Address, is_called: bool = True, refused: list[str]) -> BlockedRequest:
    """Return one that tells when it is refused."""

    def refuse(problem: WaitsForItselfError) -> None:
        refused.append(f"{name} {problem.request_id}")

    return BlockedRequest(name, wants, "it", holds, is_called, refuse)


def test_the_newest_one_of_a_circle_that_was_called_is_refused() -> None:
    """Whoever else waits for the same is left alone."""
    circles, refused = DeadlockSearch(), list[str]()
    circles.wait(waiter("bystander", K, ("another",), refused=refused))
    circles.wait(waiter("a", L, K, refused=refused))
    circles.wait(waiter("b", M, L, refused=refused))
    assert refused == []
    circles.wait(waiter("c", K, M, refused=refused))
    assert refused == ["c c"]
    circles.go_on("a")
    circles.go_on("a")
    assert len(circles) == 2


def test_one_that_waits_no_longer_is_part_of_no_circle() -> None:
    """Nothing is kept of it."""
    circles, refused = DeadlockSearch(), list[str]()
    circles.wait(waiter("a", L, K, refused=refused))
    circles.go_on("a")
    circles.wait(waiter("b", K, L, refused=refused))
    circles.go_on("b")
    assert (refused, len(circles), circles._holding) == ([], 0, {})


def test_those_who_called_nobody_are_not_refused() -> None:
    """If there is nobody else in the circle, the time for which they wait is bounded by what was declared."""
    circles, refused = DeadlockSearch(), list[str]()
    circles.wait(waiter("a", L, K, is_called=False, refused=refused))
    circles.wait(waiter("b", K, L, is_called=False, refused=refused))
    assert refused == []
