"""Moving everything in a file: a trigger freezes it, in every process and for good.

It stands on the row that every commit counts in, and so costs nothing while it is not there. Making it is a write like
any other: whoever was before it is durable, and whoever comes after it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, final

from standfast.stores.moving.paging import pages
from standfast.stores.moving.protocol import OPEN
from standfast.stores.sqlite.trouble import FROZEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from standfast.stores.moving.paging import Scan
    from standfast.stores.protocol import Record
    from standfast.stores.sqlite.driver import Connection

_FREEZE: Final = (
    "CREATE TRIGGER IF NOT EXISTS main.frozen BEFORE INSERT ON counters WHEN NEW.handle = ''"
    " BEGIN SELECT RAISE(ABORT, 'standfast frozen {}'); END"
)
_LOOK: Final = "SELECT sql FROM main.sqlite_schema WHERE type = 'trigger' AND name = 'frozen'"
_LAST: Final = "SELECT count FROM main.counters WHERE handle = ''"
_LIFT: Final = "UPDATE main.counters SET count = max(count, ?) WHERE handle = ''"
_PUT: Final = (
    "INSERT INTO main.records VALUES (?, ?, ?, ?) ON CONFLICT (key)"
    " DO UPDATE SET version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"
)


class Change(Protocol):
    """Runs a function on the writer's connection, in a transaction."""

    def __call__(self, work: Callable[[Connection], Any]) -> Awaitable[Any]:
        """Run it."""
        ...


@final
class SqliteMoving:
    """Everything in a file."""

    def __init__(self, change: Change, scan: Scan) -> None:
        self._change, self._scan = change, scan

    async def frozen(self) -> int:
        """Return why it is frozen."""
        text: str | None = await self._change(lambda writer: writer.execute(_LOOK).get)
        found = FROZEN.search(text or "")
        return int(found["reason"]) if found else OPEN

    async def freeze(self, reason: int) -> None:
        """Refuse writes."""
        await self._change(lambda writer: writer.execute(_FREEZE.format(int(reason))))

    async def thaw(self) -> None:
        """Take writes again."""
        await self._change(lambda writer: writer.execute("DROP TRIGGER IF EXISTS main.frozen"))

    async def last(self) -> int:
        """Return the last version that was given out."""
        return int(await self._change(lambda writer: writer.execute(_LAST).get))

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        await self._change(lambda writer: writer.execute(_LIFT, (version,)))

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        rows = [(record.key, record.version, record.expires_at, record.value) for record in records]
        await self._change(lambda writer: writer.executemany(_PUT, rows))
