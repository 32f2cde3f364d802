"""Moving everything in a database: a trigger freezes it, on the row that every write and every reserve counts in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from standfast.stores.libsql.hrana import Batch, if_first_but_not, if_ok
from standfast.stores.libsql.packing import pack_rows
from standfast.stores.libsql.trouble import reason_of
from standfast.stores.moving.paging import pages
from standfast.stores.remote.server import Row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from standfast.stores.libsql.hrana import Results
    from standfast.stores.moving.paging import Scan
    from standfast.stores.protocol import Record

_FREEZE: Final = (
    'CREATE TRIGGER IF NOT EXISTS "{p}frozen" BEFORE UPDATE ON "{p}clock"'
    " BEGIN SELECT RAISE(ABORT, 'standfast frozen {reason}'); END"
)
_LOOK: Final = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = '{p}frozen'"
# Not an UPDATE, which the trigger would refuse.
_LIFT: Final = 'REPLACE INTO "{p}clock" (one, count, at) SELECT one, max(count, ?1), at FROM "{p}clock"'
# As writes do, but each row has its version where others have the number of a draw.
_PUT: Final = """\
INSERT INTO "{p}records" (key, version, expires_at, value)
SELECT substr(?1, p.value ->> 0, p.value ->> 1), p.value ->> 4, p.value ->> 5, substr(?1, p.value ->> 2, p.value ->> 3)
FROM json_each(?2) AS p WHERE true
ON CONFLICT (key) DO UPDATE SET
  version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"""


class Run(Protocol):
    """Runs statements that may be run twice, and raises what goes wrong."""

    def __call__(self, batch: Batch) -> Awaitable[Results]:
        """Run them."""
        ...


@final
class LibsqlMoving:
    """Everything in the tables with one prefix."""

    def __init__(self, run: Run, prefix: str, scan: Scan) -> None:
        self._run, self._prefix, self._scan = run, prefix, scan

    async def _one(self, sql: str, *parameters: int, **words: int) -> list[list[Any]]:
        batch = Batch()
        batch.add(sql.format(p=self._prefix, **words), parameters)
        return (await self._run(batch)).rows(0)

    async def frozen(self) -> int:
        """Return why it is frozen."""
        rows = await self._one(_LOOK)
        return reason_of(cast("str", rows[0][0])) if rows else 0

    async def freeze(self, reason: int) -> None:
        """Refuse writes: making the trigger is one itself, and they come one after the other."""
        await self._one(_FREEZE, reason=int(reason))

    async def thaw(self) -> None:
        """Take writes again."""
        await self._one('DROP TRIGGER IF EXISTS "{p}frozen"')

    async def last(self) -> int:
        """Return the last version that was given out."""
        [[count]] = await self._one('SELECT count FROM "{p}clock"')
        return int(count)

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        await self._one(_LIFT, version)

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        batch = Batch()
        begin = done = batch.add("BEGIN IMMEDIATE")
        rows = [Row(record.key, record.value, record.version, record.expires_at) for record in records]
        for packed in pack_rows(rows):
            done = batch.add(_PUT.format(p=self._prefix), packed, if_ok(done))
        commit = batch.add("COMMIT", condition=if_ok(done))
        batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
        await self._run(batch)
