"""Who may see and cancel which request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec import structs

import standfast as sf
from standfast.errors import ForbiddenError, RequestCancelledError, RequestNotFoundError
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.dispatcher import ArbiterKind, Dispatcher

ADA, EVE, NOBODY = sf.Principal("acme", "ada"), sf.Principal("acme", "eve"), sf.Principal("acme")
CHIEF = sf.Principal("acme", "olga", frozenset({"operator"}))
VIEWER = sf.Principal("acme", "vera", frozenset({"viewer"}))
STRANGER = sf.Principal("other", "ada", frozenset({"operator", "viewer"}))

together = sf.Flow("together")
gate: dict[str, asyncio.Event] = {}


@together.action(concurrency=sf.Join(key="tenant"))
async def joined(request: sf.Request) -> str:
    """Run once for everybody who asks meanwhile."""
    await gate[request.tenant].wait()
    return "done"


@together.action(concurrency=sf.Batch(2, "1h", key="tenant"))
async def batched(request: sf.Request, names: list[str]) -> list[str]:
    """Run for two at a time."""
    del request
    return names


@pytest.fixture(params=["shared", "local"])
def kind(request: pytest.FixtureRequest) -> ArbiterKind:
    """Where the lines lie."""
    kind: ArbiterKind = request.param
    return kind


@pytest.fixture
def stage() -> Stage:
    """What the actions do."""
    return Stage()


@pytest.fixture
async def dispatcher(stage: Stage, kind: ArbiterKind) -> AsyncIterator[Dispatcher]:
    """One on a store in memory."""
    gate["acme"] = asyncio.Event()
    async with sf.Dispatcher("memory://", [stage.flow, together], arbiter=kind) as dispatcher:
        yield dispatcher


def asked(action: str, who: sf.Principal, **more: Any) -> sf.Call:
    """Return a request of somebody's in the flow that all take part in."""
    return sf.Call(flow="together", action=action, principal=who, **more)


@pytest.mark.parametrize("durable", [True, False])
async def test_a_request_of_another_tenant_is_absent(dispatcher: Dispatcher, stage: Stage, *, durable: bool) -> None:
    """Whoever learns its id can neither look at it nor cancel it, and is told what is told of one that never was."""
    stage.hold("a")
    handle = await dispatcher.dispatch(arrival("queued", "a", principal=ADA, session="s", durable=durable))
    await stage.until_begun("a")
    for ask in (dispatcher.find, dispatcher.info, dispatcher.explain, dispatcher.cancel):
        with pytest.raises(RequestNotFoundError) as refused:
            await ask(STRANGER, handle.id)
        assert str(refused.value) == str(RequestNotFoundError(handle.id))
    stage.release("a")
    assert await result(handle) == "did a"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("who", [EVE, NOBODY])
async def test_of_a_request_of_another_user_only_the_status_is_seen(
    dispatcher: Dispatcher, stage: Stage, who: sf.Principal, *, durable: bool
) -> None:
    """How it is and since when: not what it does, for whom, in which session, what it tells, or what it returns."""
    stage.hold("a")
    handle = await dispatcher.dispatch(arrival("queued", "a", principal=ADA, session="s", durable=durable))
    await stage.until_begun("a")
    found = await dispatcher.find(who, handle.id)
    before = await found.info()
    following = asyncio.ensure_future(anext(found.events()))
    for refused in (found.cancel(), dispatcher.cancel(who, handle.id), found.result(SOON), found.packed(SOON)):
        with pytest.raises(ForbiddenError):
            await refused
    stage.release("a")
    assert await result(handle) == "did a"
    after = await (await dispatcher.find(who, handle.id)).info()
    ended = await asyncio.wait_for(following, SOON)
    assert before.received_at
    for seen in (before, after):
        shown = {name: value for name, value in structs.asdict(seen).items() if value}
        assert shown.keys() <= {"id", "status", "received_at", "started_at", "ended_at"}
    assert (before.status, after.status) == ("running", "completed")
    assert (ended.number, ended.name, ended.data) == (1, "request.ended", {"status": "completed"})
    assert [event async for event in found.events(1)] == []


async def test_who_is_refused_can_follow_the_one_that_has_the_key(kind: ArbiterKind) -> None:
    """The id in the answer leads to where that one stands, and to its end, also if it is another user's."""
    known, flow = {each.user: each for each in (ADA, EVE)}, sf.Flow("till")
    begun, go = asyncio.Event(), asyncio.Event()

    @flow.action(concurrency=sf.Reject(key="tenant"))
    async def close(request: sf.Request) -> str:
        request.emit("of ada alone")
        begun.set()
        await go.wait()
        return "of ada alone"

    app = sf.App("memory://", flows=[flow], arbiter=kind, authenticate=lambda asks: known[asks.headers["x-user"]])
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        first = asyncio.ensure_future(client.post("/flows/till/close", headers={"x-user": "ada"}))
        await asyncio.wait_for(begun.wait(), SOON)
        refused = await client.post("/flows/till/close", headers={"x-user": "eve"})
        path = f"/requests/{refused.json()['requestId']}"
        shown = await client.get(path, headers={"x-user": "eve"})
        go.set()
        events = await client.get(f"{path}/events", headers={"x-user": "eve"})
        await first
    assert refused.status_code == 409
    assert (shown.status_code, shown.json()["status"]) == (200, "running")
    assert set(shown.json()) <= {"requestId", "status", "receivedAt", "startedAt", "attempt"}
    assert events.text == 'id: 1\nevent: request.ended\ndata: {"status":"completed"}\n\n'


@pytest.mark.parametrize("durable", [True, False])
async def test_who_sent_a_request_and_operators_may_see_and_cancel_it(
    dispatcher: Dispatcher, stage: Stage, *, durable: bool
) -> None:
    """Operators those of all users of their tenant."""
    stage.hold("a", "b")
    for name, who in (("a", ADA), ("b", CHIEF)):
        sent = arrival("queued", name, principal=ADA, session=name, durable=durable)
        handle = await dispatcher.dispatch(sent)
        assert (await dispatcher.info(who, handle.id)).user == "ada"
        await dispatcher.cancel(who, handle.id)
        with pytest.raises(RequestCancelledError):
            await result(handle)


@pytest.mark.parametrize("durable", [True, False])
async def test_a_viewer_sees_all_requests_of_its_tenant_and_cancels_none_but_its_own(
    dispatcher: Dispatcher, stage: Stage, *, durable: bool
) -> None:
    """Also who has sent them; what it is refused has not stopped them."""
    stage.hold("a", "b")
    of_ada = await dispatcher.dispatch(arrival("queued", "a", principal=ADA, session="s", durable=durable))
    own = await dispatcher.dispatch(arrival("queued", "b", principal=VIEWER, session="t", durable=durable))
    found = await dispatcher.find(VIEWER, of_ada.id)
    assert ((await found.info()).user, (await found.info()).session) == ("ada", "s")
    for cancel in (found.cancel(), dispatcher.cancel(VIEWER, of_ada.id)):
        with pytest.raises(ForbiddenError, match="operator"):
            await cancel
    await dispatcher.cancel(VIEWER, own.id)
    with pytest.raises(RequestCancelledError) as problem:
        await result(own)
    stage.release("a")
    assert (await result(of_ada), problem.value.cancelled_by) == ("did a", "user:vera")
    assert [event.data async for event in found.events()][-1] == {"status": "completed", "result": "did a"}


async def test_a_viewer_looks_over_http_and_cancels_nothing_of_others(stage: Stage, kind: ArbiterKind) -> None:
    """It is told why with 403, as is one without a role, who sees less."""
    stage.hold("a")
    known = {each.user: each for each in (EVE, VIEWER, CHIEF)}
    app = sf.App("memory://", flows=[stage.flow], arbiter=kind, authenticate=lambda asks: known[asks.headers["x-user"]])
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        handle = await app.dispatcher.dispatch(arrival("queued", "a", principal=ADA, session="s", durable=True))
        path, asked = f"/requests/{handle.id}", [("eve", 200, 403), ("vera", 200, 403), ("olga", 200, 202)]
        for user, sees, cancels in asked:
            headers = {"x-user": user}
            assert (await client.get(path, headers=headers)).status_code == sees
            assert (await client.delete(path, headers=headers)).status_code == cancels
        events = await client.get(f"{path}/events", headers={"x-user": "vera"})
    assert (events.status_code, '"cancelledBy":"operator:olga"' in events.text) == (200, True)


async def test_who_has_a_session_may_see_what_others_send_in_it(dispatcher: Dispatcher) -> None:
    """A webhook that writes into somebody's conversation is theirs to follow, and nobody else's."""
    first = arrival("queued", "a", principal=ADA, session="room", transport="http")
    await result(await dispatcher.dispatch(first))
    sent = arrival("queued", "b", principal=NOBODY, session="room", transport="webhook", durable=True)
    handle = await dispatcher.dispatch(sent)
    assert (await dispatcher.info(ADA, handle.id)).action == "queued"
    assert not (await dispatcher.info(EVE, handle.id)).action


@pytest.mark.parametrize("transport", ["webhook", "schedule"])
@pytest.mark.parametrize("sender", ["", "webhook:shop", "schedule:shop"])
async def test_a_session_that_an_endpoint_makes_is_no_users(
    dispatcher: Dispatcher, stage: Stage, transport: Any, sender: str
) -> None:
    """Whoever names it gets in neither to it nor to what was sent in it, whatever their own name; operators do."""
    stage.hold("a")
    made = {"webhook": {"name": "shop"}, "schedule": {"id": "shop"}}
    sent = {"session": "room", "transport": transport, "metadata": made, "durable": True}
    endpoint = sf.Principal("acme", sender if sender.startswith(transport) else "")
    handle = await dispatcher.dispatch(arrival("queued", "a", principal=endpoint, **sent))
    for who in (EVE, NOBODY, endpoint):
        for by in ("http", "chat", "mcp"):
            with pytest.raises(ForbiddenError, match="endpoint"):
                await dispatcher.dispatch(arrival("free", "b", principal=who, session="room", transport=by))
        assert not (await dispatcher.info(who, handle.id)).action
        with pytest.raises(ForbiddenError):
            await dispatcher.cancel(who, handle.id)
    await result(await dispatcher.dispatch(arrival("free", "c", principal=endpoint, **sent)))
    await dispatcher.cancel(CHIEF, handle.id)
    with pytest.raises(RequestCancelledError):
        await result(handle)


async def test_a_session_that_a_webhook_makes_for_a_user_is_that_users(dispatcher: Dispatcher) -> None:
    """The declaration says for whom it acts."""
    sent = arrival("queued", "a", principal=ADA, session="room", transport="webhook", durable=True)
    handle = await dispatcher.dispatch(sent)
    assert await result(
        await dispatcher.dispatch(arrival("queued", "b", principal=ADA, session="room", transport="http"))
    )
    assert (await dispatcher.info(ADA, handle.id)).action == "queued"
    with pytest.raises(ForbiddenError):
        await dispatcher.dispatch(arrival("queued", "c", principal=EVE, session="room", transport="http"))


@pytest.mark.parametrize("attended", [True, False])
async def test_whoever_shares_a_run_may_follow_it_and_not_cancel_it(dispatcher: Dispatcher, *, attended: bool) -> None:
    """By its id as well; who has sent it, and in which session, is not told."""
    await dispatcher.dispatch(asked("joined", ADA, session="of ada", attended=attended))
    handle = await dispatcher.dispatch(asked("joined", EVE, attended=attended))
    found = await dispatcher.find(EVE, handle.id)
    assert ((await found.info()).user, (await found.info()).session) == ("", "")
    for cancel in (handle.cancel, found.cancel):
        with pytest.raises(ForbiddenError):
            await cancel()
    assert not (await dispatcher.info(NOBODY, handle.id)).action
    gate["acme"].set()
    assert [await result(handle), await result(found)] == ["done", "done"]


async def test_whoever_is_in_a_batch_may_follow_it(dispatcher: Dispatcher) -> None:
    """The id that they were given leads to their result, whoever came first."""
    first = await dispatcher.dispatch(asked("batched", ADA, inputs={"names": "a"}))
    second = await dispatcher.dispatch(asked("batched", EVE, inputs={"names": "b"}))
    assert first.id == second.id
    found = await dispatcher.find(EVE, second.id)
    assert await found.result(SOON) == ["a", "b"]
    assert not (await dispatcher.info(sf.Principal("acme", "bob"), second.id)).action


async def test_who_shares_a_run_is_known_to_all_servers(stage: Stage) -> None:
    """A caller may come back to another one."""
    url, gate["acme"] = f"memory://{fresh_name()}", asyncio.Event()
    flows = [stage.flow, together]
    async with sf.Dispatcher(url, flows) as one, sf.Dispatcher(url, flows) as other:
        await one.dispatch(asked("joined", ADA))
        handle = await one.dispatch(asked("joined", EVE))
        assert (await other.find(EVE, handle.id)).id == handle.id
        assert not (await other.info(NOBODY, handle.id)).action
        gate["acme"].set()
        await result(handle)


async def test_without_authentication_whoever_has_the_token_sees_everything(stage: Stage) -> None:
    """Also what came by webhooks and schedules, which have users of their own."""
    app = sf.App("memory://", flows=[stage.flow])
    transport, token = httpx.ASGITransport(app=app, client=("127.0.0.1", 1)), {"Authorization": f"Bearer {app.token}"}
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=token) as client:
        sent = arrival("queued", "a", principal=sf.Principal(user="webhook:shop"), transport="webhook", durable=True)
        handle = await app.dispatcher.dispatch(sent)
        assert (await client.get(f"/requests/{handle.id}")).status_code == 200
