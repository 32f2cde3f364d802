"""Guarding: who loses a race tries again, with a fair chance."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from holdfast.keys import RecordKey
from holdfast.stores import Decision, Put
from holdfast.stores.protocol import Record
from holdfast.stores.remote import open_remote
from holdfast.stores.remote.guarding import TOGETHER
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from holdfast.stores import Snapshot
    from holdfast.stores.remote.server import Intent, Refused, Written

KEY = RecordKey("n", "k")


class Contested(TableServer):
    """A table where somebody else is faster, for a number of times."""

    faster = TOGETHER + 5

    async def write(self, intent: Intent) -> Written | Refused:
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
