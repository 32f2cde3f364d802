"""Connections that die, a server that stops, and writes whose answer never came."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.remote import Intent, Landed, Row, Written
from tests import services
from tests.integration.mysql.ground import opened, place, prefix_of, run_sql, server_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.server import Server

KEY = RecordKey("n", "k")


def intent(number: int) -> Intent:
    """An intent that creates a record."""
    return Intent("handle", number, {KEY: 0}, (Row(KEY, b"v", 0),), (), 1)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that may be stopped."""
    with services.private("mysql") as server:
        yield server


async def kill_all(url: str) -> None:
    """Cut every connection to the server but this one."""
    ids = await run_sql(
        url, "SELECT id FROM information_schema.processlist WHERE id<>CONNECTION_ID() AND command='Sleep'"
    )
    for (number,) in ids:
        await run_sql(url, f"KILL {number}")


@pytest.mark.services
async def test_connections_that_were_cut_are_opened_again(own_server: Server) -> None:
    """Reads and commits go on; whoever calls notices nothing."""
    async with opened(own_server.url) as [store]:
        await store.commit(Put(KEY, b"1"))
        await kill_all(own_server.url)
        seen = await store.read(KEY)
        answer = await store.commit(Put(KEY, b"2", seen.version(KEY)))

    assert isinstance(answer, Commit)


@pytest.mark.services
async def test_a_server_that_was_restarted_is_found_again(own_server: Server) -> None:
    """While it is away nothing can be done; after that everything is there."""
    async with opened(f"{own_server.url}?timeout=1s&connect_timeout=1s") as [store]:
        written = await store.commit(Put(KEY, b"1"))
        own_server.kill()
        with pytest.raises(StoreUnavailableError):
            await store.read(KEY)
        own_server.restart()
        seen = await store.read(KEY)

    assert isinstance(written, Commit)
    assert seen.version(KEY) == written.versions[KEY]


@pytest.mark.services
async def test_a_write_that_a_frozen_server_did_not_answer_is_unknown_and_then_settled(own_server: Server) -> None:
    """It may land when the server goes on, or not: closing the attempt says which, for good."""
    async with opened(f"{own_server.url}?timeout=500ms") as [store]:
        server = server_of(store)
        await server.mark()
        await server.write(Intent("handle", 1, {RecordKey("n", "x"): 0}, (), (), 0))
        own_server.stop()
        with pytest.raises(OutcomeUnknownError):
            await server.write(intent(2))
        own_server.cont()
        landed = await server.close_attempt("handle", 2, b"")
        seen = await server.read([KEY])

    assert (landed is None) == (seen.get(KEY) is None)


async def test_a_closed_attempt_can_not_be_written_any_more(mysql_url: str) -> None:
    """Not even if it had only been late; and what follows it can."""
    async with opened(place(mysql_url)) as [store]:
        server = server_of(store)

        assert await server.close_attempt("handle", 1, b"") is None
        with pytest.raises(AttemptClosedError):
            await server.write(intent(1))
        assert (await server.read([KEY])).get(KEY) is None
        await server.write(intent(2))


async def test_an_attempt_that_landed_says_with_which_versions(mysql_url: str) -> None:
    """As often as it is asked."""
    async with opened(place(mysql_url)) as [store]:
        server = server_of(store)
        written = await server.write(intent(1))

        assert isinstance(written, Written)
        for _ in range(2):
            assert await server.close_attempt("handle", 1, b"") == Landed(written.at, written.versions)


async def test_closing_waits_for_a_write_that_is_under_way(mysql_url: str) -> None:
    """Its answer is the one that the write leads to."""
    url = place(mysql_url)
    async with opened(url) as [store]:
        server = server_of(store)
        await server.write(Intent("handle", 1, {RecordKey("n", "x"): 0}, (), (), 0))
        attempts = f"{prefix_of(url)}_attempts"
        under_way = asyncio.create_task(
            run_sql(
                url,
                "START TRANSACTION",
                f"UPDATE {attempts} SET number=2, at=5, first=7, draws=1",
                "DO SLEEP(0.3)",
                "COMMIT",
            )
        )
        while not await run_sql(url, "SELECT 1 FROM information_schema.processlist WHERE info='DO SLEEP(0.3)'"):  # noqa: ASYNC110 -- nobody tells when it is so
            await asyncio.sleep(0)
        landed = await server.close_attempt("handle", 2, b"")
        await under_way

    assert landed == Landed(Instant(5), (7,))
