"""Versions: drawn from one counter, outside of the transactions that use them, a few in advance.

A record that exists is at the highest version that its key ever had, so any number above that will do. A key that
has no record may have had one; its number must be drawn when the snapshot of the transaction is there already. See
the decision record on MongoDB for why that is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from standfast.ids import new_id
from standfast.stores.mongodb.connecting import HERE
from standfast.stores.mongodb.documents import NOW, STORE
from standfast.stores.protocol import ABSENT

if TYPE_CHECKING:
    from standfast.stores.mongodb.connecting import Connection
    from standfast.stores.remote.server import Intent

SPARE: Final = 100
"""How many are drawn in advance. Below the microseconds that a draw takes: numbers are not to outrun the time."""


@final
class Versions:
    """The versions that one handle has drawn and not used."""

    __slots__ = ("_connection", "_end", "_mine", "_next")

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._mine: Final = new_id()
        self._next = self._end = 0

    async def take(self, intent: Intent, seen: dict[str, Any]) -> tuple[int, ...] | None:
        """Return versions for ``intent``, given the counter as its snapshot has it; None if its own are stale."""
        creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
        if intent.exact:
            is_last = seen["last"] == intent.exact[-1] and seen["drawn_by"] == self._mine
            return intent.exact if is_last or not creates else None
        if not intent.draws:
            return ()
        nobody_drew = seen["last"] == self._end - 1 and seen["drawn_by"] == self._mine
        highest = max(intent.guards.values())
        if self._end - self._next < intent.draws or self._next <= highest or (creates and not nobody_drew):
            await self._draw(intent.draws + SPARE)
        first = self._next
        self._next += intent.draws
        return tuple(range(first, self._next))

    async def reserve(self, count: int) -> tuple[int, ...]:
        """Draw ``count`` versions for one intent to come."""
        last = await self._raise(count)
        return tuple(range(last - count + 1, last + 1))

    async def _draw(self, count: int) -> None:
        last = await self._raise(count)
        self._next, self._end = last - count + 1, last + 1

    async def _raise(self, count: int) -> int:
        """Raise the counter, to the server's time at least: a restored backup gives no version out again."""
        raised = {"$set": {"last": {"$add": [{"$max": ["$last", NOW]}, count]}, "drawn_by": self._mine}}
        reply = await self._connection.command(
            {
                "findAndModify": self._connection.records,
                "query": {"_id": STORE},
                "update": [raised],
                "new": True,
                "fields": {"last": 1},
                "writeConcern": HERE,
            }
        )
        return int(reply["value"]["last"])
