"""The dispatcher's own life, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    ArbiterUnavailableError,
    DeclarationError,
    ForbiddenError,
    InvalidInputError,
    NotTheSoleServerError,
    RequestFailedError,
    RequestInterruptedError,
    RequestNotFoundError,
    ResultTimeoutError,
    StoreBusyError,
    UnknownActionError,
)
from standfast.flows.records import REQUESTS, RequestKeys, ended
from standfast.flows.server import sweep
from standfast.flows.view import look
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import ANN, SOON, Stage, arrival, result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.dispatcher import Dispatcher


@pytest.fixture
def stage() -> Stage:
    """What the actions do."""
    return Stage()


@pytest.fixture
async def dispatcher(stage: Stage) -> AsyncIterator[Dispatcher]:
    """One on a store in memory."""
    async with sf.Dispatcher("memory://", [stage.flow]) as dispatcher:
        yield dispatcher


async def test_what_is_not_open_refuses(stage: Stage) -> None:
    """Before it is opened, and after it was closed; and it is not opened twice."""
    dispatcher = sf.Dispatcher("memory://", [stage.flow])
    with pytest.raises(ArbiterUnavailableError):
        await dispatcher.dispatch(arrival("free", "a"))
    async with dispatcher:
        with pytest.raises(DeclarationError):
            await dispatcher.open()

    with pytest.raises(ArbiterUnavailableError):
        await dispatcher.find(ANN, "any")
    async with dispatcher:
        assert await result(await dispatcher.dispatch(arrival("free", "b"))) == "did b"


async def test_a_second_server_with_lines_in_memory_is_refused(stage: Stage) -> None:
    """Two of them would not know of each other's turns."""
    url = f"memory://{fresh_name()}"
    async with sf.Dispatcher(url, [stage.flow], arbiter="local"):
        with pytest.raises(NotTheSoleServerError):
            await sf.Dispatcher(url, [stage.flow], arbiter="local").open()


async def test_what_cannot_be_run_is_refused_before_anything_is_written(dispatcher: Dispatcher, stage: Stage) -> None:
    """Unknown actions, wrong inputs, and callers without the role."""
    for sent, problem in (
        (arrival("nonesuch", "a"), UnknownActionError),
        (arrival("queued", "a", inputs={"name": 1}), InvalidInputError),
    ):
        with pytest.raises(problem):
            await dispatcher.dispatch(sent)

    assert stage.begun == []


async def test_who_lacks_the_role_is_refused() -> None:
    """Roles are of the principal, whatever the inputs say."""
    flow = sf.Flow("ops")

    @flow.action(roles=["admin"])
    async def purge(request: sf.Request) -> str:
        return request.user

    async with sf.Dispatcher("memory://", [flow]) as dispatcher:
        with pytest.raises(ForbiddenError):
            await dispatcher.dispatch(sf.Call(flow="ops", action="purge", principal=ANN))
        root = sf.Principal("acme", "root", frozenset({"admin"}))
        handle = await dispatcher.dispatch(sf.Call(flow="ops", action="purge", principal=root))
        assert await result(handle) == "root"


async def test_an_id_that_cannot_be_one_is_not_there(dispatcher: Dispatcher) -> None:
    """Whatever somebody asks for: too long, empty, or with odd characters."""
    for name in ("", "x" * 5_000, "\0", "*", "../1"):
        with pytest.raises(RequestNotFoundError):
            await dispatcher.find(ANN, name)


async def test_a_caller_that_is_cancelled_before_it_is_taken_on_leaves_no_place(
    dispatcher: Dispatcher, stage: Stage
) -> None:
    """However far it has come."""
    for turns in range(12):
        caller = asyncio.ensure_future(dispatcher.dispatch(arrival("queued", f"a{turns}")))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})

    assert await result(await dispatcher.dispatch(arrival("queued", "last"))) == "did last"
    assert stage.ended[-1] == "last"


async def test_whoever_waits_for_a_while_is_told_that_it_goes_on(dispatcher: Dispatcher, stage: Stage) -> None:
    """A time limit of the caller's own does nothing to the request."""
    stage.hold("a")
    handle = await dispatcher.dispatch(arrival("queued", "a"))
    with pytest.raises(ResultTimeoutError):
        await handle.result(timeout=0.01)
    stage.release("a")

    assert await result(handle) == "did a"


async def test_requests_that_take_too_long_to_end_are_interrupted_on_closing(stage: Stage) -> None:
    """Their key is free for whoever serves then."""
    url = f"memory://{fresh_name()}"
    stage.hold("a")
    async with sf.Dispatcher(url, [stage.flow]) as other:
        dispatcher = sf.Dispatcher(url, [stage.flow])
        await dispatcher.open()
        handle = await dispatcher.dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        await dispatcher.aclose(grace=0)
        with pytest.raises(RequestInterruptedError):
            await (await other.find(ANN, handle.id)).result(timeout=SOON)

        assert await result(await other.dispatch(arrival("queued", "b"))) == "did b"


async def test_what_is_under_way_when_a_server_closes_is_refused(stage: Stage) -> None:
    """Its caller is told what every caller of a closing server is told: nothing was begun."""
    async with sf.open("memory://") as space, sf.Dispatcher(sf.Engine(space), [stage.flow]) as dispatcher:
        await dispatcher.engine.aclose()  # as it does at last, after it has admitted somebody who takes long
        with pytest.raises(ArbiterUnavailableError, match="closing"):
            await dispatcher.dispatch(arrival("queued", "late", durable=True))
    assert not stage.begun


async def test_a_durable_request_is_handed_back_on_closing(stage: Stage) -> None:
    """The next server goes on with it."""
    url = f"memory://{fresh_name()}"
    stage.hold("a")
    async with sf.Dispatcher(url, [stage.flow]) as other:
        dispatcher = sf.Dispatcher(sf.Engine(url), [stage.flow])
        await dispatcher.open()
        assert other.engine.worker is not None
        await other.engine.worker.stop()
        handle = await dispatcher.dispatch(arrival("queued", "a", durable=True))
        await stage.until_begun("a")
        await dispatcher.aclose(grace=0)
        stage.release("a")
        async with sf.Dispatcher(url, [stage.flow]) as third:
            assert await (await third.find(ANN, handle.id)).result(timeout=SOON) == "did a"

    assert stage.begun == ["a", "a"]


async def test_a_store_that_does_not_answer_means_refusal(
    dispatcher: Dispatcher, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is run that could not be arbitrated."""

    async def broken(*_: object, **__: object) -> None:
        raise StoreBusyError("the store", "it does not answer")

    monkeypatch.setattr(dispatcher.engine.space.store, "update", broken)
    monkeypatch.setattr(dispatcher.engine.space.store, "commit", broken)
    monkeypatch.setattr(dispatcher.engine.runtime.space, "commit_unchecked", broken)
    for durable in (False, True):
        with pytest.raises(ArbiterUnavailableError):
            await dispatcher.dispatch(arrival("queued", "a", durable=durable))
    monkeypatch.undo()

    assert stage.begun == []


async def test_ended_runs_are_swept_and_their_records_go_by_themselves(dispatcher: Dispatcher) -> None:
    """A durable request leaves nothing that stays."""
    handle = await dispatcher.dispatch(arrival("queued", "a", durable=True))
    await result(handle)
    async with asyncio.timeout(SOON):
        while (await dispatcher.engine.get(handle.id)).status != "completed":  # noqa: ASYNC110 -- in the store
            await asyncio.sleep(0.001)
    purged = await sweep(dispatcher.engine, {"chat.queued"}, kept=0)
    space = dispatcher.engine.space
    key = RequestKeys(space, "acme", handle.id).record
    record = (await space.read(key)).get(key)

    assert purged == 1
    assert record is not None
    assert record.expires_at is not None
    assert REQUESTS.decode(record.value).status == "completed"
    assert (await handle.info()).result == "did a"


async def test_a_cancelled_run_is_swept_with_its_record(dispatcher: Dispatcher, stage: Stage) -> None:
    """Also one that never began, and that nobody asked about."""
    stage.hold("a")
    await dispatcher.dispatch(arrival("queued", "a"))
    handle = await dispatcher.dispatch(arrival("queued", "b", durable=True))
    await handle.cancel()
    await sweep(dispatcher.engine, {"chat.queued"}, kept=0)
    space = dispatcher.engine.space
    key = RequestKeys(space, "acme", handle.id).record
    stage.release("a")

    assert (found := (await space.read(key)).get(key)) is not None
    assert found.expires_at is not None
    assert REQUESTS.decode(found.value).status == "cancelled"


async def test_what_is_run_once_is_shared_by_those_who_ask_at_once() -> None:
    """Two calls with one key are one call; one that failed is made again."""
    calls: list[str] = []
    flow = sf.Flow("shop")

    async def charge(what: str) -> str:
        calls.append(what)
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise ValueError(what)
        return what

    @flow.action
    async def order(request: sf.Request, name: str) -> list[str]:
        with pytest.raises(ValueError, match=name):
            await request.run_once("charge", charge, name)
        return list(await asyncio.gather(*(request.run_once("charge", charge, name) for _ in range(3))))

    async with sf.Dispatcher("memory://", [flow]) as dispatcher:
        handle = await dispatcher.dispatch(sf.Call(flow="shop", action="order", inputs={"name": "a"}))
        assert await result(handle) == ["a", "a", "a"]
    assert calls == ["a", "a"]


async def test_a_result_of_the_wrong_type_is_a_failure_that_names_the_action(stage: Stage) -> None:
    """It is found before anything is kept of it."""
    flow = sf.Flow("shop")

    @flow.action
    async def order(request: sf.Request) -> int:
        wrong: Any = request.id
        return wrong  # type: ignore[no-any-return] # that is the mistake

    async with sf.Dispatcher("memory://", [flow, stage.flow]) as dispatcher:
        handle = await dispatcher.dispatch(sf.Call(flow="shop", action="order"))
        with pytest.raises(RequestFailedError, match="order"):
            await result(handle)


async def test_a_step_whose_outcome_is_written_does_not_call_its_action_again(stage: Stage) -> None:
    """Its worker died after it was written, and before the step was marked as done."""
    url = f"memory://{fresh_name()}"
    async with sf.Dispatcher(sf.Engine(url, drive=False), [stage.flow]) as idle:
        handle = await idle.dispatch(arrival("queued", "a", durable=True))
        space = idle.engine.space
        keys = RequestKeys(space, "acme", handle.id)
        view = await look(space, keys)
        over = ended(view.record, "completed", view.at, result=b'"done before"')
        await space.commit(*keys.end(over, view.version, await space.read(*keys.ending(over))))
        async with sf.Dispatcher(url, [stage.flow]) as dispatcher:
            assert await result(await dispatcher.dispatch(arrival("queued", "b"))) == "did b"

        assert await result(await idle.find(ANN, handle.id)) == "done before"
    assert stage.begun == ["b"]
