"""What tests on MariaDB stand on: places of their own, and SQL past the store."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncmy

from standfast.stores.remote import RemoteBackend
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.stores import GroupedStore
    from standfast.stores.mysql.server import MysqlServer


def place(url: str, **options: str) -> str:
    """Return the URL of a place where no table is yet."""
    query = {"prefix": f"t{uuid.uuid4().hex[:12]}"} | options
    return f"{url}?{'&'.join(f'{name}={value}' for name, value in query.items())}"


def prefix_of(url: str) -> str:
    """Return the prefix of the tables of a place."""
    return url.partition("prefix=")[2].partition("&")[0]


def server_of(store: GroupedStore) -> MysqlServer:
    """Return what is underneath a store."""
    backend: Any = store.backend
    assert isinstance(backend, RemoteBackend)
    server: Any = backend.server
    return server  # type: ignore[no-any-return]  # a store that was opened from a mysql URL


@asynccontextmanager
async def opened(*urls: str) -> AsyncIterator[list[GroupedStore]]:
    """Open handles, and close them."""
    stores: list[GroupedStore] = []
    try:
        for url in urls:
            stores.append(await open_store(url))  # noqa: PERF401 -- those that were opened are closed if one fails
        yield stores
    finally:
        for store in stores:
            await store.aclose()


async def run_sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements on a connection of their own; return the rows of the last."""
    parts = urlsplit(url)
    connection = await asyncmy.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
        autocommit=True,
    )
    try:
        cursor = connection.cursor()
        for statement in statements:
            await cursor.execute(statement)
        return list(await cursor.fetchall()) if cursor.description else []
    finally:
        await connection.ensure_closed()
