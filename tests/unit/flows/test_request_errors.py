"""Actions that raise what is no ordinary error: they have failed, and who is to end because of it ends."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError, RequestFailedError, RequestKeyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


@pytest.fixture
def no_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C, as far as Python knows: otherwise a KeyboardInterrupt in the main thread may come from there."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("no_ctrl_c")
@ARBITERS
@DURABLE
@pytest.mark.parametrize("what", [SystemExit, KeyboardInterrupt])
async def test_an_action_that_raises_what_ends_a_program_fails_and_the_server_goes_on(
    what: Any, arbiter: Any, caplog: pytest.LogCaptureFixture, *, durable: bool
) -> None:
    """It is logged with its line, and only a signal ends the program."""
    async with sf.Dispatcher("memory://", [flow_raising(what)], arbiter=arbiter) as server:
        failed = await server.dispatch(arrival("raises", attended=not durable))
        with pytest.raises(RequestFailedError, match=what.__name__):
            await failed.result(SOON)

        assert (await failed.info()).status == "failed"
        assert await (await server.dispatch(arrival("works"))).result(SOON) == "worked"
    assert "in flow_raising.<locals>.raises" in caplog.text


@ARBITERS
async def test_an_action_that_exits_in_the_task_of_its_caller_fails_alone(arbiter: Any) -> None:
    """Also where nothing of it is stored."""
    async with sf.Dispatcher("memory://", [flow_raising(SystemExit)], arbiter=arbiter) as server:
        with pytest.raises(RequestFailedError, match="SystemExit"):
            await (await server.dispatch(arrival("raises"), here=True)).packed()
        assert await (await server.dispatch(arrival("works"), here=True)).result(SOON) == "worked"


def exits(*_: object) -> Any:
    """Call what a library for the command line calls."""
    sys.exit(3)


async def exits_soon() -> None:
    """Do the same in a function that is awaited."""
    exits()


async def test_what_an_action_hands_in_fails_it_if_that_exits() -> None:
    """A function for the state of the session, and one that is run once, which has a task of its own."""
    flow = sf.Flow("f")

    @flow.action
    async def updates(request: sf.Request) -> None:
        request.session.update("count", exits)

    @flow.action
    async def runs_once(request: sf.Request) -> None:
        await request.run_once("key", exits_soon)

    async with sf.Dispatcher("memory://", [flow]) as server:
        for action in ("updates", "runs_once"):
            with pytest.raises(RequestFailedError, match="SystemExit"):
                await (await server.dispatch(arrival(action))).result(SOON)


async def test_a_request_whose_key_function_exits_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """As one whose key function raises another thing, with the line in the log."""
    flow = sf.Flow("f")

    @flow.action(concurrency=sf.Queue(key=exits))
    async def keyed(_request: sf.Request) -> None: ...

    async with sf.Dispatcher("memory://", [flow]) as server:
        with pytest.raises(RequestKeyError, match="SystemExit"):
            await server.dispatch(arrival("keyed"))
    assert "in exits" in caplog.text


def serve_until_a_signal(url: str, what: Any, arbiter: Any) -> str:
    """Run a server until the handler of a signal ends it in the middle of an action; return the id of the request."""
    ids: list[str] = []

    def interrupted() -> BaseException:
        signal.raise_signal(signal.SIGUSR1)
        return AssertionError("the signal came too late")

    async def serve() -> None:
        async with sf.Dispatcher(url, [flow_raising(interrupted)], arbiter=arbiter) as server:
            handle = await server.dispatch(arrival("raises", idempotency_key="k"))
            ids.append(handle.id)
            await handle.result(SOON)

    def handler(*_: object) -> None:
        raise what

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(what):
            asyncio.run(serve())
    finally:
        signal.signal(signal.SIGUSR1, before)
        gc.collect()  # here, and not in another test, asyncio logs that the task of the request was left behind
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
def test_a_signal_ends_the_program_after_it_was_written_that_the_request_failed(
    what: Any, arbiter: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is raised where the loop is run, and is no failure of the action, so it is not in the log as one."""
    url = f"sqlite:///{tmp_path}/store.db"
    request_id = serve_until_a_signal(url, what, arbiter)
    assert [each for each in caplog.records if each.name.startswith("standfast")] == []
    info = asyncio.run(info_after(url, arbiter, request_id))

    assert (info.status, info.error_type) == ("failed", what.__name__)
