"""Moving everything in a schema; ``migrations/0004_moving.sql`` says what freezes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.stores.moving.paging import pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.stores.moving.paging import Scan
    from standfast.stores.postgresql.connecting import Link
    from standfast.stores.protocol import Record

_PUT: Final = (
    "INSERT INTO {0}.records (key, value, version, expires_at)"
    " SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[])"
    " ON CONFLICT (key) DO UPDATE"
    " SET value = excluded.value, version = excluded.version, expires_at = excluded.expires_at"
)


@final
class PostgresMoving:
    """Everything in one schema."""

    def __init__(self, link: Link, schema: str, scan: Scan) -> None:
        self._link, self._scan = link, scan
        self._schema: Final = f'"{schema}"'

    async def _call(self, function: str, *parameters: int) -> int:
        marks = ", ".join(f"${number + 1}::bigint" for number in range(len(parameters)))
        [(answer,)] = await self._link.call(f"SELECT {self._schema}.{function}({marks})", *parameters)
        return int(answer or 0)

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return await self._call("frozen")

    async def freeze(self, reason: int) -> None:
        """Refuse writes, when those under way have ended."""
        await self._call("freeze", reason)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._call("thaw")

    async def last(self) -> int:
        """Return the last version that was given out."""
        [(last,)] = await self._link.call(f"SELECT pg_sequence_last_value('{self._schema}.versions'::regclass)")
        return int(last or 0)

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        await self._call("lift", version)

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        columns = (
            [record.key for record in records],
            [record.value for record in records],
            [record.version for record in records],
            [record.expires_at for record in records],
        )
        await self._link.call(_PUT.format(self._schema), *columns)
