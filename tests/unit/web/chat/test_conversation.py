"""What was written in a conversation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.web.chat.conversation import TOLD_AGAIN, ChatEntry, Conversation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def space() -> AsyncIterator[sf.Space]:
    """A space in memory."""
    async with sf.open("memory://") as opened:
        yield opened


def conversation(space: sf.Space, session: str = "s", keep: float = 3600.0) -> Conversation:
    """Return the messages of a session."""
    return Conversation(space, "acme", "support", session, keep)


async def texts(told: Conversation, after: int = 0) -> list[str]:
    """Return what was written after a message."""
    return [entry.text async for _, entry in told.after(after)]


async def test_messages_of_many_writers_are_numbered_without_gaps(space: sf.Space) -> None:
    """Each gets a number of its own, also if they come at once."""
    told = conversation(space)
    numbers = await asyncio.gather(*(told.add(ChatEntry(f"{each}", f"m{each}", f"r{each}")) for each in range(20)))
    assert sorted(numbers) == list(range(min(numbers), min(numbers) + 20))
    assert sorted(await texts(told), key=int) == [str(each) for each in range(20)]


async def test_a_message_that_lies_there_is_not_added_again(space: sf.Space) -> None:
    """It is known by its id, and its number is the first one."""
    told = conversation(space)
    first = await told.add(ChatEntry("hello", "m1", "r1"))
    assert await told.add(ChatEntry("hello", "m1", "r1")) == first
    assert await texts(told) == ["hello"]


async def test_a_refused_message_may_be_sent_again(space: sf.Space) -> None:
    """What was refused does not keep a later one out."""
    told = conversation(space)
    refused = await told.add(ChatEntry("hello", "m1", problem={"status": 429}))
    assert await told.add(ChatEntry("hello", "m1", "r1")) == refused + 1


async def test_conversations_are_apart(space: sf.Space) -> None:
    """Nothing of one session is seen in another, whatever their ids have in common."""
    await conversation(space, "s").add(ChatEntry("hello", "m1", "r1"))
    for other in (conversation(space, "s1"), Conversation(space, "acme", "support-s", "", 1.0)):
        assert await texts(other) == []


async def test_somebody_new_is_told_only_the_latest(space: sf.Space) -> None:
    """A long conversation is not told from its beginning."""
    told = conversation(space)
    for each in range(TOLD_AGAIN + 5):
        await told.add(ChatEntry(f"{each}", f"m{each}", f"r{each}"))
    latest = await texts(told, await told.beginning())
    assert (len(latest), latest[0]) == (TOLD_AGAIN, "5")


async def test_the_beginning_of_an_empty_conversation_is_its_beginning(space: sf.Space) -> None:
    """There is nothing to leave out."""
    assert await conversation(space).beginning() == 0
