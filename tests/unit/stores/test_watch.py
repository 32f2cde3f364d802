"""A watch folds hints until somebody asks for them, and tells each of them once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores import Notification, Record
from standfast.stores import watch as watching
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.watch import BackendWatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

A, B, C = RecordKey("ns", "a"), RecordKey("ns", "b"), RecordKey("ns", "c")


@pytest.fixture
async def watch() -> AsyncIterator[BackendWatch]:
    """A watch of everything in a namespace."""
    async with BackendWatch(MemoryBackend(MemoryRecords()), (RecordKey("ns"),), lambda: None) as entered:
        yield entered


async def test_hints_are_folded_into_one_answer_and_told_once(watch: BackendWatch) -> None:
    """What was told is over: the next wait is for something new, so a loop around it cannot spin."""
    for key in (A, B, A):
        watch.notify(key)
    assert await watch.wait() == Notification(frozenset({A, B}), complete=True)
    assert await watch.wait(0) is None


async def test_a_lost_hint_makes_one_answer_incomplete(watch: BackendWatch) -> None:
    """Look at everything, says it; the one after that knows what it is about again."""
    watch.notify(A)
    watch.notify(None)
    watch.notify(B)
    assert await watch.wait() == Notification(frozenset(), complete=False)
    watch.notify(C)
    assert await watch.wait() == Notification(frozenset({C}), complete=True)


async def test_a_watch_nobody_asks_remembers_a_bounded_number_of_keys(
    watch: BackendWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the answer is to look at everything."""
    monkeypatch.setattr(watching, "MAX_REMEMBERED", 2)
    for key in (A, B, C):
        watch.notify(key)
    assert await watch.wait() == Notification(frozenset(), complete=False)


async def test_who_waits_is_woken_when_the_store_is_closed(watch: BackendWatch) -> None:
    """It looks at everything, and finds out."""
    waiting = asyncio.create_task(watch.wait())
    await asyncio.sleep(0)
    watch.stop()
    assert await waiting == Notification(frozenset(), complete=False)


async def test_a_record_that_is_taken_at_once_wakes_no_task(watch: BackendWatch) -> None:
    """Whoever listens has it already; one that is not taken is told as ever."""
    first, second = Record(A, b"", 1), Record(B, b"", 2)
    watch.take_at_once = lambda record: record == first
    watch.notify(A, first)
    assert await watch.wait(0) is None

    watch.notify(B, second)
    assert await watch.wait() == Notification(frozenset({B}), complete=True, moved=(second,))


async def test_a_key_that_is_skipped_wakes_no_task(watch: BackendWatch) -> None:
    """Whoever listens knows more of it; that notifications may have got lost is told in any case."""
    watch.skips = lambda key: key == A
    watch.notify(A)
    assert await watch.wait(0) is None

    watch.notify(A)
    watch.notify(B)
    assert await watch.wait() == Notification(frozenset({B}), complete=True)
    watch.notify(None)
    assert await watch.wait() == Notification(frozenset(), complete=False)
