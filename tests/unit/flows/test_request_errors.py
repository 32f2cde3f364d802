"""Actions that raise what is no ordinary error: they have failed, and who is to end because of it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError, RequestFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from standfast.flows.request import RequestInfo

SOON = 15.0
ARBITERS = pytest.mark.parametrize("arbiter", ["local", "shared"])
DURABLE = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])


class OddError(BaseException):
    """What ``except Exception`` does not catch."""


def group() -> BaseException:
    """Return what a group of tasks raises."""
    return BaseExceptionGroup("of tasks", [OddError("a"), ValueError("b"), asyncio.CancelledError()])


def flow_raising(what: Callable[[], BaseException]) -> sf.Flow:
    """Return a flow with an action that raises, and one of the same key that does not."""
    flow = sf.Flow("f")

    @flow.action(concurrency="queue")
    async def raises(_request: sf.Request) -> None:
        raise what()

    @flow.action(concurrency="queue")
    async def works(_request: sf.Request) -> str:
        return "worked"

    return flow


def arrival(action: str, **more: Any) -> sf.Call:
    """Return a request in a session."""
    return sf.Call(flow="f", action=action, session="s", **more)


@ARBITERS
@DURABLE
@pytest.mark.parametrize(("what", "name"), [(OddError, "OddError"), (group, "BaseExceptionGroup")])
async def test_what_an_action_raises_is_how_it_failed_though_it_is_no_ordinary_error(
    what: Any, name: str, arbiter: Any, *, durable: bool
) -> None:
    """The record says so by its name, the caller gets it as the cause, and the next one has its turn."""
    async with sf.Dispatcher("memory://", [flow_raising(what)], arbiter=arbiter) as server:
        failed = await server.dispatch(arrival("raises", attended=not durable))
        after = await server.dispatch(arrival("works"))
        with pytest.raises(RequestFailedError, match=name) as problem:
            await failed.result(SOON)
        info = await failed.info()

        assert (info.status, info.error_type) == ("failed", name)
        assert info.error == f"the action raised {name}"
        assert durable or isinstance(problem.value.__cause__, BaseException)
        assert await after.result(SOON) == "worked"


@ARBITERS
@pytest.mark.parametrize("what", [asyncio.CancelledError, lambda: BaseExceptionGroup("g", [asyncio.CancelledError()])])
async def test_a_cancellation_and_a_group_of_them_are_none(what: Any, arbiter: Any) -> None:
    """The request was cancelled."""
    async with sf.Dispatcher("memory://", [flow_raising(what)], arbiter=arbiter) as server:
        handle = await server.dispatch(arrival("raises"))
        with pytest.raises(RequestCancelledError):
            await handle.result(SOON)
        assert await (await server.dispatch(arrival("works"))).result(SOON) == "worked"


def exit_of(url: str, what: Any, arbiter: Any) -> str:
    """Run a server until an action ends it; return the id of that request."""
    ids: list[str] = []

    async def serve() -> None:
        async with sf.Dispatcher(url, [flow_raising(what)], arbiter=arbiter) as server:
            handle = await server.dispatch(arrival("raises", idempotency_key="k"))
            ids.append(handle.id)
            await handle.result(SOON)

    with pytest.raises(what):
        asyncio.run(serve())
    return ids[0]


async def info_after(url: str, arbiter: Any, request_id: str) -> RequestInfo:
    """Return how a request is, with another server, that works."""
    async with sf.Dispatcher(url, [flow_raising(OddError)], arbiter=arbiter) as server:
        handle = await server.find(sf.Principal(), request_id)
        with pytest.raises(RequestFailedError):
            await handle.result(SOON)
        assert await (await server.dispatch(arrival("works"))).result(SOON) == "worked"
        return await handle.info()


@ARBITERS
@pytest.mark.parametrize("what", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_ends_it_after_it_was_written_that_the_request_failed(
    what: Any, arbiter: Any, tmp_path: Path
) -> None:
    """It is raised where the loop is run."""
    url = f"sqlite:///{tmp_path}/store.db"
    request_id = exit_of(url, what, arbiter)
    info = asyncio.run(info_after(url, arbiter, request_id))

    assert (info.status, info.error_type) == ("failed", what.__name__)


@ARBITERS
@pytest.mark.parametrize("what", [SystemExit, KeyboardInterrupt])
def test_a_durable_action_that_raises_what_ends_a_program_fails_and_the_server_goes_on(what: Any, arbiter: Any) -> None:
    """It is a step of a run, and what the code of a step raises fails the step; only a signal ends the program."""

    async def serve() -> None:
        async with sf.Dispatcher("memory://", [flow_raising(what)], arbiter=arbiter) as server:
            failed = await server.dispatch(arrival("raises", attended=False))
            with pytest.raises(RequestFailedError, match=what.__name__):
                await failed.result(SOON)

            assert (await failed.info()).status == "failed"
            assert await (await server.dispatch(arrival("works"))).result(SOON) == "worked"

    asyncio.run(serve())


@ARBITERS
def test_what_ends_a_program_comes_through_the_task_that_runs_its_own_request(arbiter: Any) -> None:
    """Also where nothing of it is stored."""

    async def serve() -> None:
        async with sf.Dispatcher("memory://", [flow_raising(SystemExit)], arbiter=arbiter) as server:
            await (await server.dispatch(arrival("raises"), here=True)).packed()

    with pytest.raises(SystemExit):
        asyncio.run(serve())
