"""Moving everything in a database.

A fact says that the store is frozen. Every write reads it under a shared lock, which lasts until it is over, in the
statement that reads the time; so whoever sets it waits for all writes under way, and all later ones see it.
"""

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal

from __future__ import annotations

from typing import TYPE_CHECKING, final

from standfast.stores.moving.paging import pages
from standfast.stores.mysql.statements import NOW, load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.stores.moving.paging import Scan
    from standfast.stores.mysql.linking import Links
    from standfast.stores.mysql.options import Names
    from standfast.stores.protocol import Record


@final
class MysqlMoving:
    """Everything in the tables with one prefix."""

    def __init__(self, links: Links, names: Names, scan: Scan) -> None:
        self._links, self._names, self._scan = links, names, scan

    async def frozen(self) -> int:
        """Return why it is frozen."""
        [[[number]]] = await self._links.ask(f"SELECT number FROM {self._names.facts} WHERE name='frozen'")
        return int(number)

    async def freeze(self, reason: int) -> None:
        """Refuse writes, when those under way have ended."""
        await self._set(f"number={int(reason)} WHERE name='frozen' AND number=0")

    async def thaw(self) -> None:
        """Take writes again."""
        await self._set("number=0 WHERE name='frozen'")

    async def last(self) -> int:
        """Return the highest of the versions there, of those that were swept, and of what the time gives."""
        facts, records = self._names.facts, self._names.records
        floor = f"SELECT number FROM {facts} WHERE name='floor'"
        highest = f"SELECT COALESCE(MAX(version),0) FROM {records}"
        [[[last]]] = await self._links.ask(f"SELECT GREATEST({NOW},({floor}),({highest}))")
        return int(last)

    async def lift(self, version: int) -> None:
        """Go on above a version: a key that has no record is created above it, one that has goes on above that."""
        await self._set(f"number=GREATEST(number,{int(version)}) WHERE name='floor'")

    async def _set(self, change: str) -> None:
        await self._links.ask(f"UPDATE {self._names.facts} SET {change}")

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        for statement in load(self._names, records):
            await self._links.ask(statement)
