"""A conversation that goes on at another server."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.transports.app import App
from holdfast.transports.chat.declaring import Chat
from tests.unit.transports.chat.talking import Socket, Support, known_by_header

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@asynccontextmanager
async def two_servers(support: Support, folder: Path) -> AsyncGenerator[list[App]]:
    """Serve one chat twice, on one file."""
    async with AsyncExitStack() as stack:
        apps = []
        for _ in range(2):
            made = App(
                f"sqlite:///{folder}/chat.db",
                flows=[support.flow],
                chats=[Chat(support.flow)],
                authenticate=known_by_header,
                grace=0,
            )
            apps.append(await stack.enter_async_context(made))
        yield apps


async def test_an_answer_goes_on_at_another_server(tmp_path: Path) -> None:
    """A client that is cut off comes back to another process, and hears the rest of the answer once."""
    support = Support()
    async with two_servers(support, tmp_path) as [first, second]:
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


async def test_clients_at_two_servers_see_the_same_in_the_same_order(tmp_path: Path) -> None:
    """Messages that are written at both are answered one by one, and both clients see one conversation."""
    support = Support()
    support.go_on()
    async with two_servers(support, tmp_path) as [first, second], Socket(first) as ada, Socket(second) as too:
        session = await ada.open()
        await too.open(session)
        for number in range(3):
            await ada.say("message", id=f"a{number}", text=f"a{number}")
            await too.say("message", id=f"b{number}", text=f"b{number}")
        seen = [[await socket.until("ended") for _ in range(6)] for socket in (ada, too)]
    results = [[frame["result"] for frame in frames] for frames in seen]
    assert results[0] == results[1]
    assert sorted(results[0]) == sorted(f"re: {who}{number}" for who in "ab" for number in range(3))


async def test_a_message_that_is_sent_again_to_another_server_is_taken_once(tmp_path: Path) -> None:
    """The acknowledgement that was lost is given again, and names the same request."""
    support = Support()
    support.go_on()
    async with two_servers(support, tmp_path) as [first, second], Socket(first) as socket, Socket(second) as again:
        session = await socket.open()
        await again.open(session)
        requests = set()
        for each in (socket, again):
            await each.say("message", id="m1", text="hello")
            requests.add((await each.until("accepted"))["request"])
    assert len(requests) == 1
    assert support.kept == ["hello"]
