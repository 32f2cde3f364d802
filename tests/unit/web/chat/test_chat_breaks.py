"""A client on a bad line."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import standfast as sf
from standfast.web.chat import ChatLimits
from tests.sizes import rounds
from tests.unit.web.chat.chat_clients import Socket, chat_app

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
