"""A conversation that goes on at another server."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from standfast.web.app import App
from standfast.web.chat import Chat
from standfast.web.limits import AppLimits
from tests import services
from tests.unit.web.chat.chat_clients import Socket, Support, known_by_header

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@pytest.fixture(
    params=["sqlite", *(pytest.param(kind, marks=pytest.mark.services) for kind in ("postgresql", "redis"))]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes share."""
    return f"sqlite:///{tmp_path}/chat.db" if request.param == "sqlite" else services.url(request.param)


@asynccontextmanager
async def two_servers(support: Support, url: str) -> AsyncGenerator[list[App]]:
    """Serve one chat twice, on one store."""
    name, limits = f"chat-{secrets.token_hex(4)}", AppLimits(grace=0)
    options: dict[str, Any] = {"namespace": name, "authenticate": known_by_header, "limits": limits}
    async with AsyncExitStack() as stack:
        apps = [App(url, flows=[support.flow], chats=[Chat(support.flow)], **options) for _ in range(2)]
        yield [await stack.enter_async_context(app) for app in apps]


async def test_an_answer_goes_on_at_another_server(url: str) -> None:
    """A client that is cut off comes back to another process, and hears the rest of the answer once."""
    support = Support()
    async with two_servers(support, url) as [first, second]:
        async with Socket(first) as socket:
            session = await socket.open()
            await socket.say("message", id="m1", text="hello")
            support.go_on(1)
            before = await socket.frames_until("event", number=2)
        async with Socket(second) as again:
            await again.open(session, socket.cursor)
            support.go_on()
            after = await again.frames_until("ended")
    told = [frame["number"] for frame in [*before, *after] if frame["type"] == "event"]
    assert told == [1, 2, 3]
    assert after[-1]["result"] == "re: hello"


async def test_clients_at_two_servers_see_the_same_in_the_same_order(url: str) -> None:
    """Messages that are written at both are answered one by one, and both clients see one conversation."""
    support = Support()
    support.go_on()
    async with two_servers(support, url) as [first, second], Socket(first) as ada, Socket(second) as too:
        session = await ada.open()
        await too.open(session)
        for number in range(3):
            await ada.say("message", id=f"a{number}", text=f"a{number}")
            await too.say("message", id=f"b{number}", text=f"b{number}")
        seen = [[await socket.until("ended") for _ in range(6)] for socket in (ada, too)]
    results = [[frame["result"] for frame in frames] for frames in seen]
    assert results[0] == results[1]
    assert sorted(results[0]) == sorted(f"re: {who}{number}" for who in "ab" for number in range(3))


async def test_a_message_that_is_sent_again_to_another_server_is_taken_once(url: str) -> None:
    """The acknowledgement that was lost is given again, and names the same request."""
    support = Support()
    support.go_on()
    async with two_servers(support, url) as [first, second], Socket(first) as socket, Socket(second) as again:
        session = await socket.open()
        await again.open(session)
        requests = set()
        for each in (socket, again):
            await each.say("message", id="m1", text="hello")
            requests.add((await each.until("accepted"))["request"])
    assert len(requests) == 1
    assert support.kept == ["hello"]
