"""What requests tell: numbered, in order, and written a few at a time."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import pytest

import standfast as sf
from standfast.errors import EncodeError, RequestInterruptedError, StoreBusyError
from standfast.flows import events as emitting
from standfast.flows.events import REMEMBERED, EventJournal, EventMemory, last_number
from standfast.flows.records import EVENTS, RequestKeys
from standfast.stores.protocol import Decision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.locks.entry import ExtraChanges
    from standfast.space import Space
    from standfast.stores.protocol import Snapshot


@pytest.fixture
async def space() -> AsyncIterator[Space]:
    """A space in memory."""
    async with sf.open("memory://") as space:
        yield space


@final
class Writer:
    """Commits for a journal, and counts how often."""

    def __init__(self, space: Space) -> None:
        self._space: Final = space
        self.keys: Final = RequestKeys(space, "acme", "r-1")
        self.commits: Final[list[int]] = []
        self.kept: Final[list[int]] = []
        self.problems: Final[list[Exception]] = []

    async def write(self, extra_changes: ExtraChanges[int]) -> None:
        """Commit, or raise what the test says."""
        if self.problems:
            raise self.problems.pop()

        def decide(seen: Snapshot) -> Decision[None]:
            return Decision(None, tuple(extra_changes.decide(0, seen)))

        self.commits.append(len(extra_changes.keys))
        await self._space.update(extra_changes.keys, decide)

    def journal(self, last: int = 0) -> EventJournal:
        """Return a journal that writes here."""
        return EventJournal(self._space, self.keys, self.write, lambda: sf.clock.Instant(1), self.kept.append, last)

    async def told(self) -> list[Any]:
        """Return what lies in the store."""
        page = await self._space.scan(*self.keys.events.within(), limit=1_000)
        return [msgspec.json.decode(EVENTS.decode(record.value).data) for record in page.records.values()]


async def test_what_is_told_at_once_is_written_together(space: Space) -> None:
    """A hundred events take a few commits, and lie there in order."""
    writer = Writer(space)
    journal = writer.journal()
    for number in range(100):
        journal.emit("message", number)
    await journal.flush()

    assert await writer.told() == list(range(100))
    assert len(writer.commits) == 3
    assert await last_number(space, writer.keys) == 100


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_events_are_written_where_tasks_begin_at_once(space: Space) -> None:
    """An eager task that writes them may be over before it is known; the next event is written all the same."""
    written, loop = list[int](), asyncio.get_running_loop()

    async def write(extra_changes: ExtraChanges[int]) -> None:
        """Hand them on without a wait, as a run does that commits them with its next record."""
        written.append(len(extra_changes.keys))

    keys, before = RequestKeys(space, "acme", "r-1"), loop.get_task_factory()
    journal = EventJournal(space, keys, write, lambda: sf.clock.Instant(1), lambda _: None)
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 -- not in the oldest Python
    try:
        for number in range(3):
            journal.emit("message", number)
        async with asyncio.timeout(5):
            await journal.flush()
    finally:
        loop.set_task_factory(before)

    assert written == [1, 1, 1]


async def test_a_journal_goes_on_after_what_lies_there(space: Space) -> None:
    """A request that is run again does not number its events anew."""
    writer = Writer(space)
    for last in (0, 1):
        journal = writer.journal(last)
        journal.emit("message", last)
        await journal.flush()

    assert await writer.told() == [0, 1]


async def test_a_store_that_fails_for_a_while_is_asked_again(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and nothing is out of order."""
    monkeypatch.setattr(emitting, "PAUSE", 0.0)
    writer = Writer(space)
    writer.problems.extend(StoreBusyError("the store", "it is busy") for _ in range(3))
    journal = writer.journal()
    journal.emit("message", "a")
    await asyncio.sleep(0)
    journal.emit("message", "b")
    await journal.flush()

    assert await writer.told() == ["a", "b"]


async def test_one_who_has_lost_the_request_writes_nothing_over_the_other(space: Space) -> None:
    """Where another worker has told something, this one stops, and says so."""
    writer = Writer(space)
    other, own = writer.journal(), writer.journal()
    other.emit("message", "theirs")
    await other.flush()
    own.emit("message", "ours")

    with pytest.raises(RequestInterruptedError):
        await own.flush()
    assert await writer.told() == ["theirs"]


async def test_what_is_no_json_is_refused_where_it_is_told(space: Space) -> None:
    """The error comes from the call, and nothing of it is written."""
    writer = Writer(space)
    journal = writer.journal()
    for emit in (journal.emit, EventMemory().emit):
        with pytest.raises((EncodeError, TypeError)):
            emit("message", object())
    await journal.flush()

    assert await writer.told() == []


def test_a_memory_forgets_the_oldest() -> None:
    """It is bounded, and keeps the numbers."""
    memory = EventMemory()
    for number in range(REMEMBERED + 2):
        memory.emit("message", number)

    assert [event.number for event in memory.after(0)[:1]] == [3]
    assert memory.last == REMEMBERED + 2
