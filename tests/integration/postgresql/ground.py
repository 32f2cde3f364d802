"""What tests on PostgreSQL stand on: places of their own, SQL past the store, and other users."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from standfast.stores.postgresql import PostgresServer
from standfast.stores.remote import RemoteBackend
from standfast.stores.url import open_store
from tests.fork_server import forked_exec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.stores import GroupedStore

ROOT = Path(__file__).resolve().parents[3]


def place(url: str, **options: str) -> str:
    """Return the URL of a schema that is not there yet."""
    query = {"schema": f"t{uuid.uuid4().hex[:12]}"} | options
    return f"{url}?{'&'.join(f'{name}={value}' for name, value in query.items())}"


def schema_of(url: str) -> str:
    """Return the schema of a place."""
    return url.partition("schema=")[2].partition("&")[0]


def as_user(url: str, user: str, password: str) -> str:
    """Return the same URL for another user."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


def server_of(store: GroupedStore) -> PostgresServer:
    """Return what is underneath a store."""
    backend: Any = store.backend
    assert isinstance(backend, RemoteBackend)
    assert isinstance(backend.server, PostgresServer)
    return backend.server


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


async def made(url: str) -> str:
    """Return the URL of a new place, with its tables."""
    url = place(url)
    async with opened(url):
        return url


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a connection past the store."""
    connection = await asyncpg.connect(urlsplit(url)._replace(query="").geturl())
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def run_sql(url: str, *statements: str) -> list[asyncpg.Record]:
    """Run statements on a connection of their own; return the rows of the last. ``@`` stands for the schema."""
    rows: list[asyncpg.Record] = []
    async with connected(url) as connection:
        for statement in statements:
            rows = await connection.fetch(statement.replace("@", schema_of(url)))
    return rows


async def make_user(url: str, *grants: str, name: str = "") -> str:
    """Make a user who may log in and do what is granted; return the URL for them. ``$`` stands for their name."""
    name = name or f"u{uuid.uuid4().hex[:10]}"
    await run_sql(url, f"CREATE ROLE {name} LOGIN PASSWORD 'secret-{name}'")
    await run_sql(url, *(grant.replace("$", name) for grant in grants))
    return as_user(url, name, f"secret-{name}")


async def until(reached: Callable[[], Awaitable[Any]], within: float = 15) -> None:
    """Return when something is so, for what nobody tells."""
    async with asyncio.timeout(within):
        while not await reached():  # noqa: ASYNC110 -- nobody tells when it is so
            await asyncio.sleep(0.005)


async def run_program(name: str, *arguments: str) -> tuple[int, str]:
    """Run a program of these tests to its end; return how it ended and what it said."""
    program = await forked_exec(
        sys.executable, "-m", f"tests.integration.postgresql.programs.{name}", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    told, _ = await program.communicate()
    return program.returncode or 0, told.decode()
