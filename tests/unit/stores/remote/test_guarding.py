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
