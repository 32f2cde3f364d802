"""Answers that end close together: in which order clients are told, and what does not depend on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.flows.handle import Handle
from standfast.web.chat.feed import FeedCursor
from tests.unit.web.chat.chat_clients import Socket, Support, chat_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from standfast.flows.request import EmittedEvent

TEXTS = ["one", "two", "three"]


class Late:
    """Lets each client hear of the end of an answer only when it has heard of the ends of those after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, readers: int) -> None:
        self._events: Callable[..., AsyncIterator[EmittedEvent]] = Handle.events
        self._heard = asyncio.Condition()
        self._passed, self._readers = 0, readers
        monkeypatch.setattr(Handle, "events", lambda handle, after=0: self._follow(handle, after))

    async def _follow(self, handle: Handle, after: int) -> AsyncIterator[EmittedEvent]:
        async for event in self._events(handle, after):
            if event.name == "request.ended":
                await self._let_later_ones_pass(event.data["result"].removeprefix("re: "))
            yield event

    async def _let_later_ones_pass(self, text: str) -> None:
        later = (len(TEXTS) - 1 - TEXTS.index(text)) * self._readers
        async with self._heard:
            await self._heard.wait_for(lambda: self._passed >= later)
            self._passed += 1
            self._heard.notify_all()


@pytest.mark.parametrize("policy", ["queue", "allow"])
async def test_ends_are_told_to_all_in_the_order_in_which_answers_have_ended(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them a client hears of first; also to one who comes when all is over."""
    support = Support(policy)
    async with chat_app(support.flow) as app, Socket(app) as writer:
        session = await writer.open()
        for number, text in enumerate(TEXTS):  # one by one, so that there is an order
            await writer.say("message", id=f"m{number}", text=text)
            support.go_on(3)
            await writer.until("ended")
        Late(monkeypatch, readers=2)
        async with Socket(app) as first, Socket(app) as second:
            for reader in (first, second):
                await reader.open(session)
            told = [[(await each.until("ended"))["result"] for _ in TEXTS] for each in (first, second)]
    assert told == [[f"re: {text}" for text in TEXTS]] * 2


async def test_an_answer_that_has_not_ended_holds_up_nobody() -> None:
    """The end of a newer one is told while it goes on."""
    flow, may_end = sf.Flow("support"), asyncio.Event()

    @flow.action
    async def respond(_request: sf.Request, text: str) -> str:
        if text == "long":
            await may_end.wait()
        return text

    async with chat_app(flow, append=None) as app, Socket(app) as reader:
        await reader.open()
        for text in ("long", "short"):
            await reader.say("message", id=text, text=text)
        assert (await reader.until("ended"))["result"] == "short"
        may_end.set()
        assert (await reader.until("ended"))["result"] == "long"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms(use_true_random=False), st.data())
def test_what_was_read_does_not_depend_on_how_frames_of_answers_are_mixed(
    lengths: list[int], random: Any, data: st.DataObject
) -> None:
    """Each answer keeps its own order, and a client that comes back is told exactly what it has not read."""
    steps = [number for number, length in enumerate(lengths, 1) for _ in range(length)]
    random.shuffle(steps)
    cut = data.draw(st.integers(0, len(steps)))
    seen, count = FeedCursor(0, len(lengths)), dict.fromkeys(range(1, len(lengths) + 1), 0)

    def read(number: int) -> None:
        count[number] += 1
        seen.note(number, count[number])
        if count[number] == lengths[number - 1]:
            seen.end(number)

    for number in steps[:cut]:
        read(number)
    again = FeedCursor.read(str(seen))
    assert [again.is_over(each) for each in count] == [count[each] == lengths[each - 1] for each in count]
    assert all(again.after(each) == count[each] for each in count if not again.is_over(each))
    for number in steps[cut:]:
        read(number)
    assert str(seen) == f"{len(lengths)}-{len(lengths)}"
