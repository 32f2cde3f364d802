"""What is followed in these tests: actions that tell in bursts and end with the last of them, or take their time."""

from __future__ import annotations

import asyncio
import os

import standfast as sf

talk = sf.Flow("talk", concurrency="allow")


async def tell(request: sf.Request, many: int, bursts: int) -> int:
    """Tell that much, in bursts; the end comes with the last of it."""
    for number in range(many):
        request.emit(number)
        if number % (many // bursts) == 0:
            await asyncio.sleep(0.01)
    return many


@talk.action
async def burst(request: sf.Request, many: int) -> int:
    """Leave nothing in the store."""
    return await tell(request, many, 4)


@talk.action(concurrency="queue")
async def queued(request: sf.Request, many: int) -> int:
    """Need a turn, and lie in the store."""
    return await tell(request, many, 4)


@talk.action(durable=True)
async def kept(request: sf.Request, many: int) -> int:
    """Go on whatever happens, a little every 10 ms."""
    return await tell(request, many, many)


@talk.action
async def steady(request: sf.Request, many: int) -> int:
    """Take as long, in the server that took it."""
    return await tell(request, many, many)


@talk.action(durable=True)
async def respond(request: sf.Request, text: str) -> int:
    """Answer in a chat."""
    return await tell(request, int(text), 4)


def __getattr__(name: str) -> sf.App:
    """Return the application, or the one that has tools besides, which takes longer to start."""
    if name not in ("app", "app_with_tools"):
        raise AttributeError(name)
    return sf.App(
        os.environ["STANDFAST_STORE"],
        flows=[talk],
        chats=[sf.web.Chat(talk, append=None)],
        tools=[burst, queued, kept] if name == "app_with_tools" else [],
        limits=sf.web.AppLimits(user_streams=100),
    )
