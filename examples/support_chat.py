"""A support chat: what customers write lands at once, and they are answered one by one, in order.

Run it to see a burst of messages played through it, or serve it and talk to it in a browser:

    standfast serve support_chat:app     # in this folder; then open the address that it shows
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import standfast as sf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WORD_SECONDS = 0.02
"""How long the model thinks about a word."""

support = sf.Flow("support-chat", description="Customers ask, and a model answers.")


@support.action
async def append_message(request: sf.Request, text: str) -> None:
    """Keep what a customer wrote. Nobody waits for anybody here."""
    request.session.append("messages", {"role": "customer", "text": text})


@support.action(concurrency=sf.Queue(max_waiting=20, timeout="2 minutes"))
async def respond(request: sf.Request, text: str) -> str:
    """Answer one message. The answers in a session are given one by one, in the order of the messages."""
    answer = ""
    async for word in model(text, await request.session.get("messages", [])):
        answer += word
        request.emit(word)
    request.session.append("messages", {"role": "support", "text": answer})
    return answer


async def model(question: str, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Stand in for a language model: it thinks of a word at a time, and knows what was said before."""
    number = 1 + sum(message["role"] == "support" for message in messages)
    answer = f"This is answer {number} in our conversation. You wrote: {question}"
    for word in answer.replace(" ", " \n").split("\n"):
        await asyncio.sleep(WORD_SECONDS)
        yield word


app = sf.App("sqlite:///support_chat.db", flows=[support], chats=[sf.web.Chat(support)], name="support")


async def main() -> None:
    """Play a burst of messages: all of them land before the first is answered."""
    ada: dict[str, Any] = {"flow": support.kind, "session": "ada-1", "principal": sf.Principal("acme", "ada")}
    async with app:
        answers = []
        for text in ("My parcel is late.", "Can I change the address?", "Never mind, it is here!"):
            kept = await app.dispatcher.dispatch(sf.Call(action="append_message", inputs={"text": text}, **ada))
            await kept.result()
            waits = sf.Call(action="respond", inputs={"text": text}, attended=False, **ada)
            answers.append(await app.dispatcher.dispatch(waits))
            print(f"Ada:     {text}")
        for answer in answers:
            print(f"Support: {await answer.result()}")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# Ada:     My parcel is late.
# Ada:     Can I change the address?
# Ada:     Never mind, it is here!
# Support: This is answer 1 in our conversation. You wrote: My parcel is late.
# Support: This is answer 2 in our conversation. You wrote: Can I change the address?
# Support: This is answer 3 in our conversation. You wrote: Never mind, it is here!
