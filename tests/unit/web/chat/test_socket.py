"""A conversation over a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import standfast as sf
from standfast.errors import StoreUnavailableError
from standfast.web.chat import ChatLimits, feed
from standfast.web.chat.conversation import Conversation
from tests.unit.web.chat.chat_clients import HOST, Socket, Support, chat_app


@pytest.fixture
async def support() -> Support:
    """A flow whose answers wait to be let go on."""
    return Support()


async def test_a_message_is_acknowledged_and_answered_word_by_word(support: Support) -> None:
    """The acknowledgement names the request; then come its events and what it returned."""
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        await socket.say("message", id="m1", text="hello")
        frames = await socket.frames_until("ended")
    accepted = next(frame for frame in frames if frame["type"] == "accepted")
    assert accepted["message"] == "m1"
    assert [frame["data"] for frame in frames if frame["type"] == "event"] == ["re:", "hello", "done"]
    assert frames[-1]["request"] == accepted["request"]
    assert frames[-1]["result"] == "re: hello"


async def test_a_burst_lands_at_once_and_is_answered_in_order(support: Support) -> None:
    """All messages are kept before the first answer ends, and answers come in the order of the messages."""
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        for number in range(4):
            await socket.say("message", id=f"m{number}", text=f"question {number}")
        for number in range(4):
            await socket.until("message", message=f"m{number}")
        assert support.kept == [f"question {number}" for number in range(4)]
        support.go_on()
        ended = [await socket.until("ended") for _ in range(4)]
    assert [frame["result"] for frame in ended] == [f"re: question {number}" for number in range(4)]


async def test_a_sole_server_that_decides_in_memory_answers_in_order_too(support: Support) -> None:
    """The conversation is the same whoever arbitrates."""
    support.go_on()
    async with chat_app(support.flow, arbiter="local") as app, Socket(app) as socket:
        await socket.open()
        for number in range(3):
            await socket.say("message", id=f"m{number}", text=f"question {number}")
        ended = [await socket.until("ended") for _ in range(3)]
    assert [frame["result"] for frame in ended] == [f"re: question {number}" for number in range(3)]


async def test_a_client_that_comes_back_hears_the_rest_once(support: Support) -> None:
    """After a break in the middle of an answer no event is missing and none comes twice."""
    async with chat_app(support.flow) as app:
        async with Socket(app) as socket:
            session = await socket.open()
            await socket.say("message", id="m1", text="hello")
            support.go_on(1)
            before = [frame for frame in await socket.frames_until("event", number=2) if frame["type"] == "event"]
        support.go_on()
        async with Socket(app) as again:
            await again.open(session, socket.cursor)
            after = await again.frames_until("ended")
    told = [frame["number"] for frame in [*before, *after] if frame["type"] == "event"]
    assert told == [1, 2, 3]
    assert "message" not in {frame["type"] for frame in after}


async def test_what_was_read_to_its_end_needs_no_place_to_go_on_from(support: Support) -> None:
    """The cursor does not grow with the conversation."""
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        for number in range(5):
            await socket.say("message", id=f"m{number}", text="hello")
            await socket.until("ended")
    base, _, last = socket.cursor.partition("-")
    assert base == last


async def test_what_was_said_meanwhile_is_told_to_a_client_that_comes_back(support: Support) -> None:
    """Messages that came while a client was away are told after it has come back, each once."""
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as other:
        async with Socket(app) as socket:
            session = await socket.open()
            await socket.say("message", id="m1", text="one")
            await socket.until("ended")
        await other.open(session)
        await other.say("message", id="m2", text="two")
        await other.until("accepted", message="m2")
        async with Socket(app) as again:
            await again.open(session, socket.cursor)
            frames = await again.frames_until("ended")
    assert [frame["text"] for frame in frames if frame["type"] == "message"] == ["two"]


async def test_a_message_that_is_sent_again_is_taken_once(support: Support) -> None:
    """A client that did not hear the acknowledgement sends the message again, and nothing is doubled."""
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        for _ in range(2):
            await socket.say("message", id="m1", text="hello")
        accepted = [await socket.until("accepted") for _ in range(2)]
        await socket.say("message", id="m2", text="bye")
        frames = await socket.frames_until("ended", result="re: bye")
    assert accepted[0]["request"] == accepted[1]["request"]
    assert support.kept == ["hello", "bye"]
    assert [frame["message"] for frame in frames if frame["type"] == "message"] == ["m2"]


async def test_all_clients_of_a_session_see_the_same(support: Support) -> None:
    """What one tab says, the other one sees, with the answer."""
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as first, Socket(app) as second:
        session = await first.open()
        await second.open(session)
        await first.say("message", id="m1", text="hello")
        assert (await second.until("message"))["text"] == "hello"
        assert (await second.until("ended"))["result"] == "re: hello"


async def test_a_stranger_gets_into_nobodys_session(support: Support) -> None:
    """Another user of the tenant is refused before anything is read, kept or run."""
    support.go_on()
    async with chat_app(support.flow) as app:
        async with Socket(app) as socket:
            session = await socket.open()
            await socket.say("message", id="m1", text="hello")
            await socket.until("ended")
        async with Socket(app, user="eve") as stranger:
            await stranger.say("open", session=session)
            assert (await stranger.hear())["problem"]["status"] == 403
            assert await stranger.hear() == {"type": "closed", "code": 1008}


async def test_of_two_who_choose_the_same_session_the_first_to_write_has_it(support: Support) -> None:
    """A free id is taken with the first message; whoever opened it too is refused then."""
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as ada, Socket(app, user="eve") as eve:
        await ada.open("our-session")
        await eve.open("our-session")
        await ada.say("message", id="m1", text="mine")
        await ada.until("ended")
        await eve.say("message", id="m2", text="no, mine")
        assert (await eve.until("refused"))["problem"]["status"] == 403
    assert support.kept == ["mine"]


async def test_whoever_waited_in_an_empty_session_reads_nothing_of_its_owner(support: Support) -> None:
    """To open a session before its owner writes is no way to listen: the connection ends with the first message."""
    async with chat_app(support.flow) as app, Socket(app) as ada, Socket(app, user="eve") as eve:
        await eve.open("our-session")
        await ada.open("our-session")
        await ada.say("message", id="m1", text="for nobody but me")
        await ada.until("accepted")
        assert (await eve.hear())["problem"]["status"] == 403
        assert await eve.hear() == {"type": "closed", "code": 1008}
        support.go_on()
        assert (await ada.until("ended"))["status"] == "completed"


async def test_whoever_has_no_name_cannot_choose_a_session(support: Support) -> None:
    """Only ids that cannot be guessed protect those who have no name."""
    async with chat_app(support.flow) as app, Socket(app, user="") as socket:
        await socket.say("open", session="session-1")
        assert (await socket.hear())["problem"]["status"] == 422
        assert (await socket.hear())["type"] == "closed"


async def test_a_refused_answer_says_who_holds_the_key_since_when() -> None:
    """Under reject a message is kept, and why it is not answered is told to all."""
    support = Support("reject")
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        await socket.say("message", id="m1", text="one")
        request = (await socket.until("accepted"))["request"]
        await socket.say("message", id="m2", text="two")
        frames: list[dict[str, Any]] = []
        while len(frames) < 2:
            frames += [frame for frame in [await socket.hear()] if "problem" in frame]
        support.go_on()
    assert {frame["type"] for frame in frames} == {"message", "refused"}
    assert [frame["problem"]["status"] for frame in frames] == [409, 409]
    assert [frame["problem"]["requestId"] for frame in frames] == [request, request]
    assert support.kept == ["one", "two"]


async def test_who_waits_is_told_the_position_and_when_it_changes(
    support: Support, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement has the position, and a status comes when the line moves, not only after a while."""
    monkeypatch.setattr(feed, "LOOK_EVERY", 3600.0)
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        for number in range(3):
            await socket.say("message", id=f"m{number}", text="question")
        third = await socket.until("accepted", message="m2")
        assert third["position"] == 1
        assert third["explanation"]["holderAction"] == "support.respond"
        support.go_on(3)
        moved = await socket.until("status", request=third["request"], position=0)
        support.go_on()
    assert moved["status"] == "waiting"


async def test_a_burst_that_was_debounced_has_one_answer() -> None:
    """Messages of a burst name the same request, whose events come once."""
    support = Support(sf.Debounce("500ms"))
    support.go_on()
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        for number in range(3):
            await socket.say("message", id=f"m{number}", text=f"part {number}")
        frames = await socket.frames_until("ended")
        requests = [frame["request"] for frame in frames if frame["type"] == "message"]
    assert len(requests) == 3
    assert len(set(requests)) == 1
    assert [frame["data"] for frame in frames if frame["type"] == "event"] == ["re:", "part 2", "done"]


async def test_a_message_that_is_too_long_is_refused(support: Support) -> None:
    """It is not kept, and the connection stays."""
    async with chat_app(support.flow, ChatLimits(message=10)) as app, Socket(app) as socket:
        await socket.open()
        await socket.say("message", id="m1", text="ä" * 6)
        assert (await socket.until("refused"))["message"] == "m1"
        await socket.say("message", id="m2", text="ä" * 5)
        assert (await socket.until("accepted"))["message"] == "m2"
        support.go_on()


async def test_a_frame_that_is_too_large_ends_the_connection(support: Support) -> None:
    """It is not even read."""
    async with chat_app(support.flow, ChatLimits(message=10)) as app, Socket(app) as socket:
        await socket.open()
        await socket.say("message", id="m1", text="x" * 20_000)
        assert await socket.hear() == {"type": "closed", "code": 1009}


@pytest.mark.parametrize("frame", ["", "{", "[]", '{"type":"nonsense"}', '{"type":"message"}', '"\\ud800"'])
async def test_what_is_no_frame_is_refused_without_being_quoted(support: Support, frame: str) -> None:
    """The connection stays, and the answer does not repeat what was sent."""
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        await socket.say_raw(frame)
        problem = (await socket.until("refused"))["problem"]
    assert problem["status"] == 422
    assert "nonsense" not in problem["detail"] or "Invalid value" in problem["detail"]


async def test_who_writes_too_fast_is_told_when_to_go_on(support: Support) -> None:
    """Messages beyond the burst are refused, whichever connection of the user they come by."""
    limits = ChatLimits(rate=0.001, burst=2)
    async with chat_app(support.flow, limits) as app, Socket(app) as first, Socket(app) as second:
        session = await first.open()
        await second.open(session)
        for number, socket in enumerate([first, second]):
            await socket.say("message", id=f"m{number}", text="hello")
            await socket.until("accepted")
        await first.say("message", id="m3", text="hello")
        problem = (await first.until("refused"))["problem"]
        support.go_on()
    assert problem["status"] == 429
    assert problem["retryAfter"] > 1


async def test_a_user_has_only_so_many_connections(support: Support) -> None:
    """One more is refused before it is accepted, and others are let in."""
    async with chat_app(support.flow, ChatLimits(connections=1)) as app, Socket(app), Socket(app) as second:
        assert second.first["status"] == 429
        async with Socket(app, user="bob") as other:
            assert other.first["type"] == "websocket.accept"


async def test_nobody_gets_in_without_credentials(support: Support) -> None:
    """The connection is answered with 401 and never accepted."""
    async with chat_app(support.flow) as app, Socket(app, user=None) as socket:
        assert (socket.first["type"], socket.first["status"]) == ("websocket.http.response.start", 401)


@pytest.mark.parametrize(("origin", "kind"), [("https://evil.example", "denied"), (f"https://{HOST}", "accepted")])
async def test_a_page_of_somebody_else_gets_no_connection(support: Support, origin: str, kind: str) -> None:
    """A browser asks nobody before it connects, so the origin is checked here."""
    async with chat_app(support.flow) as app, Socket(app, origin=origin) as socket:
        assert socket.first["type"] == {"accepted": "websocket.accept"}.get(kind, "websocket.http.response.start")


async def test_a_silent_client_is_asked_and_then_let_go(support: Support) -> None:
    """It gets a ping, and the connection ends if nothing comes back."""
    async with chat_app(support.flow, ChatLimits(heartbeat="10ms")) as app, Socket(app) as socket:
        await socket.open()
        assert await socket.hear() == {"type": "ping"}
        assert (await socket.until("closed"))["code"] == 4008


async def test_a_connection_that_nobody_uses_is_closed(support: Support) -> None:
    """A client that only says that it is still there is let go after a while."""
    limits = ChatLimits(heartbeat="10ms", idle="1ms")
    async with chat_app(support.flow, limits) as app, Socket(app) as socket:
        await socket.open()
        assert (await socket.until("closed"))["code"] == 4000


async def test_a_client_that_reads_slowly_is_let_go_and_loses_nothing() -> None:
    """Little is kept ready for it; the rest is told when it comes back."""
    flow = sf.Flow("support")

    @flow.action
    async def respond(request: sf.Request, text: str) -> None:
        del text
        for number in range(3 * feed.AHEAD):
            request.emit(number)

    async with chat_app(flow, ChatLimits(patience="50ms"), append=None) as app:
        async with Socket(app) as socket:
            session = await socket.open()
            await socket.say("message", id="m1", text="hello")
            await socket.until("message")
            socket.reads.clear()
            await asyncio.wait_for(socket._task, 10)
        async with Socket(app) as again:
            await again.open(session, socket.cursor)
            frames = await again.frames_until("ended")
    told = [frame["data"] for frame in frames if frame["type"] == "event"]
    assert told[-1] == 3 * feed.AHEAD - 1
    assert told == list(range(told[0], 3 * feed.AHEAD))


async def test_clients_are_let_go_when_the_application_closes(support: Support) -> None:
    """They come back to another process."""
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        app.drain()
        assert await socket.hear() == {"type": "closed", "code": 1012}


async def test_an_answer_can_be_stopped(support: Support) -> None:
    """A reader who does not want it any more ends it."""
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        await socket.say("message", id="m1", text="hello")
        request = (await socket.until("event"))["request"]
        await socket.say("cancel", request=request)
        assert (await socket.until("ended"))["status"] == "cancelled"


async def test_an_answer_in_another_session_cannot_be_stopped(support: Support) -> None:
    """The id of a request alone is not enough."""
    async with chat_app(support.flow) as app, Socket(app) as socket, Socket(app, user="eve") as stranger:
        await socket.open()
        await stranger.open()
        await socket.say("message", id="m1", text="hello")
        request = (await socket.until("event"))["request"]
        await stranger.say("cancel", request=request)
        await stranger.say("message", id="m2", text="are you stopped?")
        await stranger.until("accepted")
        support.go_on()
        assert (await socket.until("ended"))["status"] == "completed"


async def test_what_an_action_raised_is_not_shown() -> None:
    """Callers learn that the answer failed, and nothing from inside."""
    flow = sf.Flow("support")

    @flow.action
    async def respond(request: sf.Request, text: str) -> None:
        del request, text
        raise ValueError("the password is swordfish")

    async with chat_app(flow, append=None) as app, Socket(app) as socket:
        await socket.open()
        await socket.say("message", id="m1", text="hello")
        ended = await socket.until("ended")
    assert ended["status"] == "failed"
    assert "swordfish" not in str(ended)


async def test_a_store_that_does_not_answer_lets_a_client_try_again(
    support: Support, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so by the code with which the connection is closed."""

    async def fail(_: Conversation) -> int:
        raise StoreUnavailableError("memory", "it was unplugged")

    monkeypatch.setattr(Conversation, "beginning", fail)
    async with chat_app(support.flow) as app, Socket(app) as socket:
        await socket.open()
        assert (await socket.until("refused"))["problem"]["status"] == 503
        assert (await socket.hear())["code"] == 1013


async def test_a_connection_whose_feed_fails_does_not_stay_silent(
    support: Support, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has thought of ends it, instead of leaving a client that waits for ever."""

    def fail(_: Conversation, after: int) -> None:
        raise ZeroDivisionError(after)

    monkeypatch.setattr(Conversation, "after", fail)
    async with chat_app(support.flow) as app:
        socket = await Socket(app).__aenter__()
        await socket.open()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(socket._task, 10)
