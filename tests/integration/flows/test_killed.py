"""Two servers on one store, one of which is killed: nothing that was answered is lost, and nothing counts twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import pytest

import standfast as sf
from standfast.errors import RequestInterruptedError, TooManyQuarantinedError
from standfast.flows.records import SESSIONS, session_key
from tests.integration.flows.stage import flow_of, nothing
from tests.integration.sqlite.children import PATIENCE, Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from standfast.flows.dispatcher import Dispatcher
    from standfast.flows.handle import Handle
    from standfast.flows.request import RequestExplanation

SOMEBODY = sf.Principal()
OPERATOR = sf.Principal(user="olga", roles=frozenset({"operator"}))


class Serve(Protocol):
    """Starts a server on the store of this test."""

    def __call__(self, name: str) -> Child:
        """Start it, and wait until it serves."""
        ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that processes share."""
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def serve(url: str) -> Iterator[Serve]:
    """Start servers that are ended after the test."""
    servers: list[Child] = []

    def start(name: str) -> Child:
        child = Child("tests.integration.flows.programs.serve", url, name)
        servers.append(child)
        assert child.hear() == ["ready"]
        return child

    yield start
    for each in servers:
        each.kill()


@pytest.fixture
async def watcher(url: str) -> AsyncIterator[Dispatcher]:
    """One that sends and follows requests, and runs no durable ones."""
    async with sf.Dispatcher(sf.Engine(url, drive=False), [flow_of(nothing)]) as dispatcher:
        yield dispatcher


async def names_of(dispatcher: Dispatcher) -> list[str]:
    """Return what was appended to the session."""
    space = dispatcher.engine.space
    key = session_key(space, "default", "s-1")
    record = (await space.read(key)).get(key)
    return [] if record is None else SESSIONS.decode(record.value).state["names"]


def sent(server: Child, action: str, name: str, how: str = "durable", key: str = "-") -> str:
    """Let a server send a request, and return its id."""
    word, request_id = server.ask("send", action, name, how, key)
    assert word == "sent"
    return request_id


def begun(server: Child, action: str, name: str, how: str = "durable", key: str = "-") -> str:
    """Let a server send a request that it begins itself, and return its id when it has."""
    server.tell("send", action, name, how, key)
    said = dict([server.hear(), server.hear()])
    assert said["begun"] == name
    return said["sent"]


async def test_a_durable_request_goes_on_in_another_server(serve: Serve, watcher: Dispatcher) -> None:
    """It is run again, its outcome counts once, and its events go on where they were."""
    one, two = serve("one"), serve("two")
    request_id = begun(one, "queued", "a")
    one.kill()
    assert two.hear() == ["begun", "a"]
    two.tell("go", "a")
    handle = await watcher.find(SOMEBODY, request_id)

    assert await handle.result(timeout=PATIENCE) == "a@two"
    assert await names_of(watcher) == ["a@two"]
    told = [(event.number, event.name, event.data) async for event in handle.events()]
    begun_again = [(1, "message", "one"), (2, "request.restarted", {"attempt": 2}), (3, "message", "two")]
    assert told[:-1] in (begun_again, [(1, "message", "two")])


async def test_a_request_that_must_not_be_done_twice_ends_interrupted(serve: Serve, watcher: Dispatcher) -> None:
    """Its key is free then, and its idempotency key says what became of it."""
    one, two = serve("one"), serve("two")
    request_id = begun(one, "delicate", "a", key="k")
    one.kill()
    handle = await watcher.find(SOMEBODY, request_id)
    with pytest.raises(RequestInterruptedError):
        await handle.result(timeout=PATIENCE)

    assert (await handle.info()).status == "interrupted"
    assert sent(two, "delicate", "a", key="k") == request_id
    begun(two, "queued", "b")


async def test_an_attended_request_ends_with_its_server_and_its_key_is_free(serve: Serve, watcher: Dispatcher) -> None:
    """Whoever follows it is told, and the one that waited behind it has its turn."""
    one, two = serve("one"), serve("two")
    lost = begun(one, "queued", "a", "attended")
    waiting = sent(two, "queued", "b", "attended")
    one.kill()
    assert two.hear() == ["begun", "b"]
    two.tell("go", "b")

    with pytest.raises(RequestInterruptedError):
        await (await watcher.find(SOMEBODY, lost)).result(timeout=PATIENCE)
    assert await (await watcher.find(SOMEBODY, waiting)).result(timeout=PATIENCE) == "b@two"


async def test_an_idempotency_key_follows_its_owner(serve: Serve, watcher: Dispatcher) -> None:
    """If the server died that ran its request, the next one with the same key is run."""
    one, two = serve("one"), serve("two")
    lost = begun(one, "queued", "a", "attended", "k")
    one.kill()
    with pytest.raises(RequestInterruptedError):
        await (await watcher.find(SOMEBODY, lost)).result(timeout=PATIENCE)
    again = begun(two, "queued", "a", "attended", "k")
    two.tell("go", "a")

    assert again != lost
    assert await (await watcher.find(SOMEBODY, again)).result(timeout=PATIENCE) == "a@two"


async def test_a_request_that_ends_its_servers_is_left_alone_and_an_operator_can_free_its_key(
    serve: Serve, watcher: Dispatcher
) -> None:
    """It and the one behind it say that it is quarantined; once it is cancelled, that one has its turn."""
    one = serve("fragile-one")
    poison = begun(one, "queued", "a")
    behind = sent(one, "queued", "b")
    one.kill()
    two = serve("fragile-two")
    handle = await watcher.find(SOMEBODY, poison)
    why = await explained(handle)
    behind_whom = await watcher.explain(SOMEBODY, behind)
    await watcher.cancel(OPERATOR, poison, "it is poison")
    assert two.hear() == ["begun", "b"]
    two.tell("go", "b")

    assert (why.holder, why.holder_status, why.key) == (poison, "quarantined", "session 's-1'")
    assert behind_whom is not None
    assert (behind_whom.holder, behind_whom.holder_status) == (poison, "quarantined")
    assert (await handle.info()).status == "cancelled"
    assert await (await watcher.find(SOMEBODY, behind)).result(timeout=PATIENCE) == "b@fragile-two"


async def test_a_tenant_whose_requests_end_their_servers_gets_no_more_until_an_operator_has_looked(
    serve: Serve, url: str
) -> None:
    """No server takes one on, not even one that has just begun; when fewer are left, it is as before."""
    one = serve("fragile-one")
    poison = begun(one, "queued", "a")
    one.kill()
    two, tenants = serve("fragile-two"), sf.web.TenantLimits(quarantined=1)
    async with sf.Dispatcher(sf.Engine(url, drive=False), [flow_of(nothing)], tenants=tenants) as watcher:
        await explained(await watcher.find(SOMEBODY, poison))
        sending = sf.Call(flow="chat", action="queued", inputs={"name": "b"}, session="s-1", attended=False)
        with pytest.raises(TooManyQuarantinedError):
            await watcher.dispatch(sending)
        await watcher.cancel(OPERATOR, poison, "it is poison")
        handle = await eventually(watcher, sending)
        assert two.hear() == ["begun", "b"]
        two.tell("go", "b")
        assert await handle.result(timeout=PATIENCE) == "b@fragile-two"


async def eventually(dispatcher: Dispatcher, arrival: sf.Call) -> Handle:
    """Send a request again until it is taken on."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await dispatcher.dispatch(arrival)
            except TooManyQuarantinedError:
                await asyncio.sleep(0.01)


async def explained(handle: Handle) -> RequestExplanation:
    """Wait until it is known why a request does not go on."""
    async with asyncio.timeout(PATIENCE):
        while True:
            info = await handle.info()
            if info.status == "waiting" and info.explanation is not None and info.explanation.holder == handle.id:
                return info.explanation
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", ["collecting", "running"])
async def test_the_last_event_of_a_burst_survives_its_server(serve: Serve, watcher: Dispatcher, when: str) -> None:
    """Whether its server dies before the burst is run, or at the moment that it is."""
    one = serve("one")
    first = sent(one, "debounced", "a")
    assert sent(one, "debounced", "b") == first
    if when == "running":
        assert one.hear() == ["begun", "b"]
    one.kill()
    two = serve("two")
    assert two.hear() == ["begun", "b"]
    two.tell("go", "b")

    assert await (await watcher.find(SOMEBODY, first)).result(timeout=PATIENCE) == "b@two"
    assert await names_of(watcher) == ["b@two"]
