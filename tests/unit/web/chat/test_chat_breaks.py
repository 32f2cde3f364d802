"""A client on a bad line."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.web.chat import ChatLimits, feed
from tests.sizes import rounds
from tests.unit.web.chat.chat_clients import Socket, Support, caller, chat_app

if TYPE_CHECKING:
    import pytest

MESSAGES = 6
WORDS = 5


def talkative(policy: Any) -> sf.Flow:
    """Return a flow that answers in several words."""
    flow = sf.Flow("support")

    @flow.action(concurrency=policy)
    async def respond(request: sf.Request, text: str) -> str:
        for number in range(WORDS):
            request.emit(f"{text} {number}")
        return text

    return flow


async def heard_on_a_bad_line(flow: sf.Flow, random: random.Random) -> list[dict[str, Any]]:
    """Send messages and hear the answers; the line breaks after every few frames, and what was on its way is lost."""
    heard: list[dict[str, Any]] = []
    unsent = {f"m{number}": f"text {number}" for number in range(MESSAGES)}
    session, cursor, ended = "", "", 0
    async with chat_app(flow, ChatLimits(rate=10_000, burst=10_000), append=None) as app:
        while ended < MESSAGES:
            async with Socket(app) as socket:
                socket.cursor = cursor
                session = await socket.open(session, cursor)
                for message, text in unsent.items():
                    await socket.say("message", id=message, text=text)
                for _ in range(random.randint(1, 8)):
                    frame = await socket.hear()
                    heard.append(frame)
                    unsent.pop(frame["message"] if frame["type"] == "accepted" else "", None)
                    ended += frame["type"] == "ended"
                    if ended == MESSAGES:
                        break
                cursor = socket.cursor
                socket.lose()
    return heard


async def test_every_message_and_every_event_is_heard_once_however_often_the_line_breaks(seed: int) -> None:
    """Nothing is lost and nothing is doubled, at whichever frame the line breaks."""
    chance = random.Random(seed)
    for _ in rounds("chats on a bad line", full=500, quick=10):
        heard = await heard_on_a_bad_line(talkative(chance.choice(["queue", "allow"])), chance)
        told = Counter(frame["message"] for frame in heard if frame["type"] == "message")
        words = Counter(frame["data"] for frame in heard if frame["type"] == "event")
        ends = Counter(frame["result"] for frame in heard if frame["type"] == "ended")
        texts = [f"text {number}" for number in range(MESSAGES)]
        assert told == Counter(f"m{number}" for number in range(MESSAGES))
        assert words == Counter(f"{text} {number}" for text in texts for number in range(WORDS))
        assert ends == Counter(texts)


async def test_the_words_of_an_answer_keep_their_order_on_a_bad_line(seed: int) -> None:
    """Each answer is heard from its first word to its last, and then its end."""
    heard = await heard_on_a_bad_line(talkative("queue"), random.Random(seed))
    for number in range(MESSAGES):
        words = [frame["data"] for frame in heard if str(frame.get("data", "")).startswith(f"text {number} ")]
        assert words == [f"text {number} {word}" for word in range(WORDS)]


async def test_who_comes_back_is_told_where_every_answer_stands() -> None:
    """However many wait: each that has not ended has a status, with its position if it waits."""
    support = Support()
    many = 20
    async with chat_app(support.flow, ChatLimits(rate=10_000, burst=10_000)) as app:
        async with Socket(app) as socket:
            session = await socket.open()
            for number in range(many):
                await socket.say("message", id=f"m{number}", text="question")
                await socket.until("accepted", message=f"m{number}")
        async with Socket(app) as again:
            await again.open(session, socket.cursor)
            statuses = [await again.until("status") for _ in range(many)]
        support.go_on()
    assert len({frame["request"] for frame in statuses}) == many
    assert sorted(frame.get("position", -1) for frame in statuses) == list(range(-1, many - 1))


async def test_no_answer_is_said_to_wait_after_it_has_begun(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Where an answer stands is looked up while it begins: what was seen before is not told after its first word."""
    monkeypatch.setattr(feed, "LOOK_EVERY", 0.0)
    heard = await heard_on_a_bad_line(talkative("queue"), random.Random(seed))
    begun: set[str] = set()
    for frame in heard:
        if frame["type"] == "event":
            begun.add(frame["request"])
        assert frame["type"] != "status" or frame["status"] == "running" or frame["request"] not in begun


async def test_an_answer_is_said_to_run_though_what_was_in_front_was_not_of_this_chat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one is looked at often: the request before it may have come another way, and tells nothing here."""
    monkeypatch.setattr(feed, "LOOK_EVERY", 3600.0)
    monkeypatch.setattr(feed, "NEXT_WITHIN", 0.01)
    flow, begun, first, last = sf.Flow("support"), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @flow.action(concurrency="queue")
    async def respond(request: sf.Request, text: str) -> str:
        begun.set()
        await (first if text == "first" else last).wait()
        return f"{text} of {request.user}"

    async with chat_app(flow, append=None) as app, Socket(app) as socket, caller(app) as client:
        session = await socket.open()
        headers = {"Standfast-Session": session}
        sending = asyncio.ensure_future(
            client.post("/flows/support/respond", json={"text": "first"}, headers=headers, timeout=10)
        )
        await begun.wait()
        await socket.say("message", id="m", text="second")
        await socket.until("status", status="waiting")
        first.set()
        await socket.until("status", status="running")
        last.set()
        await sending
