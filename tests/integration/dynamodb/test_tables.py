"""The table: made by whoever comes first, refused if it is not ours, and never made without being asked."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from standfast.errors import StoreUnavailableError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.dynamodb.tables import FORMAT
from standfast.stores.url import open_store
from tests.integration.dynamodb.conftest import server_of


async def test_twenty_processes_that_start_at_once_make_one_table(fresh_url: str) -> None:
    """All of them are ready in the end, on the same table."""
    stores = await asyncio.gather(*(open_store(f"{fresh_url}&create=true") for _ in range(20)))
    try:
        await stores[0].commit(Put(RecordKey("n", "a"), b"shared"))
        seen = await asyncio.gather(*(store.read(RecordKey("n", "a")) for store in stores))
        assert {len(each.records) for each in seen} == {1}
    finally:
        await asyncio.gather(*(store.aclose() for store in stores))


async def test_a_table_that_is_made_lets_the_service_clean_up(fresh_url: str) -> None:
    """Time to live is on, and nothing is paid for while it is idle."""
    store = await open_store(f"{fresh_url}&create=true")
    client: Any = server_of(store).link.client
    table = fresh_url.partition("/t-")[2].partition("?")[0]
    try:
        lives = await client.describe_time_to_live(TableName=f"t-{table}")
        described = await client.describe_table(TableName=f"t-{table}")
    finally:
        await store.aclose()
    assert lives["TimeToLiveDescription"] == {"TimeToLiveStatus": "ENABLED", "AttributeName": "t"}
    assert described["Table"]["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


async def test_a_missing_table_is_not_made_without_being_asked(fresh_url: str) -> None:
    """The error has the commands to type."""
    with pytest.raises(UnsuitableStoreError, match=r"aws dynamodb create-table .* --billing-mode PAY_PER_REQUEST"):
        await open_store(fresh_url)


async def test_a_table_in_a_newer_format_is_refused(fresh_url: str) -> None:
    """An old release leaves it alone."""
    store = await open_store(f"{fresh_url}&create=true")
    client: Any = server_of(store).link.client
    table = fresh_url.rpartition("/")[2].partition("?")[0]
    newer = {"p": {"B": b"\x00\x00format"}, "s": {"B": b"f"}, "n": {"N": str(FORMAT + 1)}}
    await client.put_item(TableName=table, Item=newer)
    await store.aclose()

    with pytest.raises(UnsuitableStoreError, match="upgrade standfast"):
        await open_store(fresh_url)


async def test_a_table_of_somebody_else_is_refused(url: str, fresh_url: str) -> None:
    """Its keys are not ours, and nothing is written to it."""
    store = await open_store(url)
    client: Any = server_of(store).link.client
    table = fresh_url.rpartition("/")[2].partition("?")[0]
    await client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    await store.aclose()

    with pytest.raises(UnsuitableStoreError, match="not Standfast's"):
        await open_store(f"{fresh_url}&create=true")


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    """It is tried for as long as a request may take, and no longer."""
    with pytest.raises(StoreUnavailableError):
        await open_store("dynamodb://key:hunter2@127.0.0.1:9/table?tls=false&timeout=200ms&connect_timeout=200ms")


async def test_no_secret_is_shown_when_opening_fails() -> None:
    """Neither in the error, nor in what led to it."""
    url = "dynamodb://AKIAKEY:hunter2@127.0.0.1:9/table?tls=false&timeout=100ms&connect_timeout=100ms"
    with pytest.raises(StoreUnavailableError) as raised:
        await open_store(url)

    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
    assert "hunter2" not in shown


async def test_no_secret_is_shown_by_what_is_open(fresh_url: str) -> None:
    """Handles, servers and links have no secret in their repr."""
    secret = fresh_url.partition(":")[2].partition(":")[2].partition("@")[0]
    store = await open_store(f"{fresh_url}&create=true")
    server = server_of(store)
    shown = "".join(map(repr, (store, store.backend, server, server.link, server.name)))
    await store.aclose()

    assert len(secret) > 8
    assert secret not in shown


async def test_missing_credentials_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys in the URL the usual chain is asked; if that has none, nothing is sent."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")

    with pytest.raises(UnsuitableStoreError, match="no credentials"):
        await open_store("dynamodb://127.0.0.1:9/table?tls=false")
    with pytest.raises(UnsuitableStoreError, match="region"):
        await open_store("dynamodb:///table")
