"""What is asked for over and over: one small function, behind each policy, and behind nothing."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

import standfast as sf

FLOW: Final = sf.Flow("bench")
TOKEN: Final = "sf_a-token-of-the-benchmarks"  # noqa: S105 -- made up for them
BODY: Final = b'{"text":"what is asked for over and over","number":7,"tags":["a","b","c"]}'


class Question(Struct, frozen=True):
    """What is asked."""

    text: str
    number: int
    tags: list[str]


class Answer(Struct, frozen=True):
    """What is answered."""

    text: str
    number: int
    tags: int


def answer(text: str, number: int, tags: list[str]) -> Answer:
    """Do next to nothing, so that all that is measured is the way there and back."""
    return Answer(text, number + 1, len(tags))


@FLOW.action(concurrency=sf.Allow())
async def allow(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer at once."""
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Queue())
async def queue(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer in turn."""
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Queue(max_waiting=1_000))
async def turns(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer in turn, and let others come meanwhile."""
    await asyncio.sleep(0)
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Reject())
async def reject(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer unless another one is answered."""
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Reject(), on_disconnect="cancel")
async def occupy(_request: sf.Request) -> None:
    """Have a turn until the caller goes away."""
    await asyncio.Event().wait()


@FLOW.action(concurrency=sf.Restart())
async def restart(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer in place of those before."""
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Join())
async def join(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer all who ask meanwhile."""
    await asyncio.sleep(0)
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Latest())
async def latest(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer the newest."""
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Debounce("20ms", max_wait="100ms"))
async def debounce(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer the last of a burst."""
    return answer(text, number, tags)


@FLOW.action(concurrency=sf.Batch(16, "20ms"))
async def batch(_request: sf.Request, questions: list[Question]) -> list[Answer]:
    """Answer many together."""
    return [answer(each.text, each.number, each.tags) for each in questions]


@FLOW.action(durable=True)
async def durable(_request: sf.Request, text: str, number: int, tags: list[str]) -> Answer:
    """Answer whatever happens to this process."""
    return answer(text, number, tags)
