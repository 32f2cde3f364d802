"""Guarding: who loses a race tries again, with a fair chance."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import (
    InvalidChangeError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from standfast.keys import RecordKey
from standfast.stores import Commit, Decided, Decision, Put, settlement
from standfast.stores.backend import Batching
from standfast.stores.protocol import Record
from standfast.stores.remote import WriteRefused, open_remote
from standfast.stores.remote import writer as guarding
from standfast.stores.remote.writer import TOGETHER
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores import Snapshot
    from standfast.stores.remote.server import Intent, Landed, Written

KEY = RecordKey("n", "k")


class Contested(TableServer):
    """A table where somebody else is faster, for a number of times."""

    faster = TOGETHER + 5

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Let the other one be first."""
        if self.faster > 0:
            self.faster -= 1
            self.table.version += 1
            self.table.records[KEY] = Record(KEY, b"", self.table.version)
        return await super().write(intent)


async def test_who_has_paused_after_losing_looks_again_before_trying() -> None:
    """What the server had shown was old after the pause: whoever tried on that would lose for ever."""
    table = Table()
    store = open_remote(Contested(table))

    def decide(seen: Snapshot) -> Decision[Any]:
        return Decision(None, (Put(KEY, b"mine", seen.version(KEY)),))

    await store.update([KEY], decide)
    await store.aclose()

    calls = [call for call in table.calls if call in {"read", "write"}]
    assert ("write", "write") not in list(itertools.pairwise(calls))[2 * TOGETHER :]
    assert table.records[KEY].value == b"mine"


async def test_who_finds_nothing_left_to_do_after_losing_asks_no_more() -> None:
    """The refusal has shown everything at one moment: an answer about that moment needs no other look."""
    table = Table()
    server = Contested(table)
    server.faster = 1
    store = open_remote(server)

    def once(seen: Snapshot) -> Decision[str]:
        if KEY in seen.records:
            return Decision("somebody else was first")
        return Decision("written", (Put(KEY, b"mine"),))

    await store.read(KEY)
    table.calls.clear()
    decided = await store.update([KEY], once)
    calls = [call for call in table.calls if call in {"read", "write"}]
    await store.aclose()

    assert decided.answer == "somebody else was first"
    assert calls == ["write"]


async def test_what_was_read_is_what_the_next_write_rests_on() -> None:
    """Whoever reads a record right before changing it does not lose to a change that it has seen."""
    table = Table()
    store, other = open_remote(TableServer(table)), open_remote(TableServer(table))
    for each in (store, other):
        await each.update([KEY], lambda seen: Decision(None, (Put(KEY, b"", seen.version(KEY)),)))
    await store.read(KEY)
    table.calls.clear()
    await store.update([KEY], lambda seen: Decision(None, (Put(KEY, b"mine", seen.version(KEY)),)))
    writes = table.calls.count("write")
    for each in (store, other):
        await each.aclose()

    assert writes == 1


class Vanishing(TableServer):
    """A table that writes, and is gone before it answers; later on it is there again."""

    gone = False

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Write, and be gone."""
        await super().write(intent)
        self.gone = True
        raise OutcomeUnknownError(self.name, "gone")

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Answer if it is there."""
        if self.gone:
            raise StoreUnavailableError(self.name, "gone")
        return await super().close_attempt(handle, number, namespace)


async def test_closing_a_handle_does_not_make_a_written_attempt_look_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not settled yet stays counted: whoever asks on another handle is not told to do it again."""
    monkeypatch.setattr(settlement, "FIRST_PAUSE", 0.0)
    server = Vanishing(Table())
    store = open_remote(server)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await store.commit(Put(KEY, b"written"))
    server.gone = False
    await store.aclose()

    other = open_remote(TableServer(server.table))
    with pytest.raises(StoreError, match="another handle"):
        await other.settle(unknown.value.attempt)
    await other.aclose()


class Divided(Vanishing):
    """A table that keeps each namespace on a machine of its own, so that an attempt can be closed only there."""

    def __init__(self, table: Table) -> None:
        super().__init__(table, Batching(spans_namespaces=False))
        self.asked: list[bytes] = []

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Note where it is asked."""
        self.asked.append(namespace)
        return await super().close_attempt(handle, number, namespace)


async def test_an_attempt_says_in_which_namespace_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle that never sent it can close it where it would have landed: its name is enough."""
    monkeypatch.setattr(settlement, "FIRST_PAUSE", 0.0)
    server = Divided(Table())
    store = open_remote(server)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await store.commit(Put(KEY, b"written"))
    server.gone = False
    await store.aclose()

    other_server = Divided(Table())
    other_server.gone = False
    other = open_remote(other_server)
    assert await other.settle(unknown.value.attempt) is None
    await other.aclose()

    assert other_server.asked == [KEY.namespace]


class Crowded(TableServer):
    """A table where one key is never to be had, and a value of another is too large."""

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Refuse what has to do with the one, and what has the other."""
        if any(row.value == b"too large" for row in intent.puts):
            raise InvalidChangeError("too large")
        return WriteRefused(self.table.clock.wall(), {}) if KEY in intent.guards else await super().write(intent)


@pytest.mark.parametrize(
    ("first", "problem"), [(Put(KEY, b""), StoreBusyError), (Put(KEY.child("large"), b"too large"), InvalidChangeError)]
)
async def test_what_keeps_one_rider_from_being_written_is_not_told_to_the_others(
    monkeypatch: pytest.MonkeyPatch, first: Put, problem: type[Exception]
) -> None:
    """They were only in the same batch, and ride in the next."""
    monkeypatch.setattr(guarding, "LONGEST_PAUSE", 0.0)
    store = open_remote(Crowded(Table()))

    answers = await asyncio.gather(
        store.commit(first), store.commit(Put(KEY.child("calm"), b"")), return_exceptions=True
    )
    await store.aclose()

    assert isinstance(answers[0], problem)
    assert isinstance(answers[1], Commit)


class Measuring(TableServer):
    """A table that notes how many bytes are written to it at once."""

    def __init__(self, table: Table, batching: Batching) -> None:
        super().__init__(table, batching)
        self.sizes: list[int] = []

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Note it, and write."""
        self.sizes.append(sum(len(row.value) for row in intent.puts))
        return await super().write(intent)


async def test_updates_that_turn_out_large_are_written_in_parts() -> None:
    """What they write is known only when they were decided; whoever does not fit rides in the next transaction."""
    server = Measuring(Table(), Batching(max_bytes=1_000))
    store = open_remote(server)
    keys = [KEY.child(str(number)) for number in range(8)]

    async def write(key: RecordKey) -> object:
        return await store.update([key], lambda _: Decision(None, (Put(key, bytes(600)),)))

    answers = await asyncio.gather(*map(write, keys))
    await store.aclose()

    assert all(isinstance(answer, Decided) for answer in answers)
    assert max(server.sizes) <= 2_000
    assert sum(server.sizes) == 8 * 600


class Late(TableServer):
    """A table whose reads are answered when the next refusal is."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.refused = asyncio.Event()
        self.refused.set()

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Answer late with what was there."""
        seen = await super().read(keys)
        await self.refused.wait()
        return seen

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Let the reads be answered first."""
        answer = await super().write(intent)
        if isinstance(answer, WriteRefused) and len(intent.guards) > 1:
            self.refused.set()
            await asyncio.sleep(0.01)
        return answer


async def test_a_late_read_does_not_come_between_what_was_shown_and_the_answer() -> None:
    """What a refusal has confirmed is what the next plan rests on, whatever is heard meanwhile."""
    table, other_key = Table(), KEY.child("other")
    server = Late(table)
    mine, other = open_remote(server), open_remote(TableServer(table))

    def decide(seen: Snapshot) -> Decision[Any]:
        found = seen.get(KEY)
        return Decision(found and found.value, () if seen.get(other_key) else (Put(other_key, b""),))

    await other.commit(Put(KEY, b"old"))
    await mine.read(KEY)
    server.refused.clear()
    late = asyncio.create_task(mine.read(KEY))
    await asyncio.sleep(0.01)
    await mine.update([KEY], lambda seen: Decision(None, (Put(KEY, b"new", seen.version(KEY)),)))
    await other.commit(Put(other_key, b""))
    decided = await mine.update([KEY, other_key], decide)
    assert (await late).records[KEY].value == b"old"
    for each in (mine, other):
        await each.aclose()

    assert decided.answer == b"new"
