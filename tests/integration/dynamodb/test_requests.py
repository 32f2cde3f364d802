"""What becomes of a commit when the service turns it away, fails, or is not heard of again."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from aiohttp import ClientConnectorError, ClientOSError
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from standfast.errors import (
    StoreBusyError,
    StoreError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores import Commit, Conflict, Decision, Put
from standfast.stores.url import open_store
from tests.integration.dynamodb.conftest import Wire, server_of

if TYPE_CHECKING:
    from standfast.stores import GroupedStore


def answered(code: str, status: int = 400, reasons: tuple[str, ...] = ()) -> ClientError:
    """Return an error as the service answers it."""
    response: Any = {
        "Error": {"Code": code, "Message": "said the service"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
    }
    if reasons:
        response["CancellationReasons"] = [{"Code": reason} for reason in reasons]
    return ClientError(response, "TransactWriteItems")


TURNED_AWAY = [
    answered("TransactionCanceledException", reasons=("None", "TransactionConflict")),
    answered("TransactionCanceledException", reasons=("ThrottlingError", "None")),
    answered("ProvisionedThroughputExceededException"),
    answered("ThrottlingException"),
    answered("RequestLimitExceeded"),
    EndpointConnectionError(endpoint_url="http://nowhere", error=socket.gaierror()),
    EndpointConnectionError(
        endpoint_url="http://nowhere", error=ClientConnectorError(Mock(), ConnectionRefusedError())
    ),
]


@pytest.mark.parametrize("problem", TURNED_AWAY, ids=lambda problem: str(problem)[:60])
async def test_a_commit_that_is_turned_away_is_sent_again(
    store: GroupedStore, wire: Wire, key: Any, problem: Exception
) -> None:
    """Conflicts, throttling and a refused connection write nothing: after a pause the commit lands."""
    wire.disturb("transact_write_items", problem, problem)

    assert isinstance(await store.commit(Put(key("a"), b"once")), Commit)
    assert len(wire.requests("transact_write_items")) == 1


@pytest.mark.parametrize(
    ("problem", "error"), [(TURNED_AWAY[0], StoreBusyError), (TURNED_AWAY[3], StoreUnavailableError)]
)
async def test_patience_ends(url: str, key: Any, problem: Exception, error: type[StoreError]) -> None:
    """A commit that is turned away for longer than a request may take is given up, and was not written."""
    store = await open_store(f"{url}&timeout=50ms")
    Wire(server_of(store)).disturb("transact_write_items", *[problem] * 100)
    try:
        with pytest.raises(error):
            await store.commit(Put(key("a"), b""))
        assert (await store.read(key("a"))).records == {}
    finally:
        await store.aclose()


LOST = [
    ReadTimeoutError(endpoint_url="http://service"),
    ConnectionClosedError(endpoint_url="http://service"),
    EndpointConnectionError(endpoint_url="http://service", error=ClientOSError(104, "Connection reset by peer")),
    answered("InternalServerError", 500),
    answered("ServiceUnavailable", 503),
    answered("TransactionInProgressException"),
    TimeoutError(),
]


@pytest.mark.parametrize("problem", LOST, ids=lambda problem: str(problem)[:60] or "no answer")
async def test_a_commit_whose_answer_is_lost_is_found(
    store: GroupedStore, wire: Wire, key: Any, problem: Exception
) -> None:
    """The attempt says that it landed and with which version; it is not written twice."""
    wire.disturb("transact_write_items", problem, after=True)

    verdict = await store.commit(Put(key("a"), b"once"))

    assert isinstance(verdict, Commit)
    assert (await store.read(key("a"))).version(key("a")) == verdict.versions[key("a")]
    assert len(wire.requests("transact_write_items")) == 1


@pytest.mark.parametrize("problem", LOST, ids=lambda problem: str(problem)[:60] or "no answer")
async def test_a_commit_that_got_lost_is_closed_and_sent_anew(
    store: GroupedStore, wire: Wire, key: Any, problem: Exception
) -> None:
    """The attempt is closed first, so that what is stuck on its way can never land."""
    wire.disturb("transact_write_items", problem)

    verdict = await store.commit(Put(key("a"), b"once"))

    assert isinstance(verdict, Commit)
    assert len(wire.requests("put_item")) == 1
    assert (await store.read(key("a"))).version(key("a")) == verdict.versions[key("a")]


async def test_a_request_that_was_stuck_is_refused_when_it_arrives(store: GroupedStore, wire: Wire, key: Any) -> None:
    """After its attempt was closed it finds that, whatever its guards say."""
    wire.disturb("transact_write_items", ReadTimeoutError(endpoint_url="http://service"))
    commit = await store.commit(Put(key("a"), b""))
    assert isinstance(commit, Commit)

    with pytest.raises(ClientError, match=r"\[ConditionalCheckFailed, "):
        await server_of(store).link.client.transact_write_items(**wire.stuck[0])
    assert (await store.read(key("a"))).version(key("a")) == commit.versions[key("a")]


async def test_a_request_that_is_sent_twice_on_its_way_counts_once(store: GroupedStore, wire: Wire, key: Any) -> None:
    """The second finds the first in its place, and is taken for what it is: this handle's own success."""
    wire.double("transact_write_items")

    verdict = await store.commit(Put(key("a"), b"once"))

    assert isinstance(verdict, Commit)
    assert (await store.read(key("a"))).version(key("a")) == verdict.versions[key("a")]


async def test_a_repeated_request_is_known_by_its_token(store: GroupedStore, wire: Wire, key: Any) -> None:
    """Every transaction has a token of its own, which the service remembers for ten minutes."""
    for name in "ab":
        await store.commit(Put(key(name), b""))
    tokens = [request["ClientRequestToken"] for request in wire.requests("transact_write_items")]
    again = wire.requests("transact_write_items")[0]

    await server_of(store).link.client.transact_write_items(**again)

    assert len(set(tokens)) == 2
    assert all(1 <= len(token) <= 36 for token in tokens)


@pytest.mark.parametrize("operation", ["get_item", "transact_get_items", "query"])
@pytest.mark.parametrize("problem", [TURNED_AWAY[0], LOST[1], LOST[2]], ids=["conflict", "closed", "fault"])
async def test_a_read_that_fails_is_sent_again(
    store: GroupedStore, wire: Wire, key: Any, operation: str, problem: Exception
) -> None:
    """Reading twice changes nothing."""
    await store.commit(Put(key("a"), b""), Put(key("b"), b""))
    wire.disturb(operation, problem)

    assert len((await store.read(key("a"))).records) == 1
    assert len((await store.read(key("a"), key("b"))).records) == 2
    assert len((await store.scan(*key().within(), limit=5)).records) == 2


REFUSALS = [
    ("AccessDeniedException", StoreReadOnlyError),
    ("ResourceNotFoundException", StoreGoneError),
    ("UnrecognizedClientException", UnsuitableStoreError),
    ("ExpiredTokenException", StoreUnavailableError),
    ("ValidationException", StoreError),
]


@pytest.mark.parametrize(("code", "error"), REFUSALS)
async def test_a_refusal_has_its_own_error(
    store: GroupedStore, wire: Wire, key: Any, code: str, error: type[StoreError]
) -> None:
    """What the service says is translated; nothing was written."""
    wire.disturb("transact_write_items", answered(code))

    with pytest.raises(StoreError) as raised:
        await store.commit(Put(key("a"), b""))
    assert type(raised.value) is error


async def test_nothing_is_read_that_may_be_stale(store: GroupedStore, wire: Wire, key: Any) -> None:
    """Reads and scans are consistent, and several keys are read in a transaction."""
    await store.commit(Put(key("a"), b""))
    await store.read(key("a"))
    await store.read(key("a"), key("b"))
    await store.scan(*key().within(), limit=5)

    reads = [request for operation, request in wire.sent if operation in {"get_item", "query"} if ":p" in str(request)]
    assert len(wire.requests("transact_get_items")) == 1
    assert all(request["ConsistentRead"] for request in reads)


async def test_a_lost_race_says_what_is_there_without_a_read(store: GroupedStore, wire: Wire, key: Any) -> None:
    """The refusal of the transaction carries the record that stood in the way."""
    await store.commit(Put(key("a"), b"there"))
    wire.sent.clear()

    verdict = await store.commit(Put(key("a"), b"late"))

    assert isinstance(verdict, Conflict)
    record = verdict.current[key("a")]
    assert record is not None
    assert record.value == b"there"
    assert {operation for operation, _ in wire.sent} == {"transact_write_items"}


async def test_what_is_too_large_for_one_transaction_is_read_twice(store: GroupedStore, wire: Wire, key: Any) -> None:
    """And if somebody has written in between, once more: the records belong to one moment."""
    keys = [key("a"), key("b")]
    await store.commit(*(Put(each, b"old") for each in keys))
    wire.disturb("transact_get_items", answered("ValidationException"))
    wire.before_each("get_item", {3: lambda: _renew(store, keys)})

    seen = await store.read(*keys)

    assert {record.value for record in seen.records.values()} == {b"new"}


async def _renew(store: GroupedStore, keys: list[Any]) -> None:
    await store.update(keys, lambda seen: Decision(None, tuple(Put(each, b"new", seen.version(each)) for each in keys)))


async def test_a_large_commit_is_sent_without_a_warning(store: GroupedStore, key: Any) -> None:
    """The loop has other work while it is sent, and the client's library has nothing to complain of."""
    verdict = await store.commit(*(Put(key(str(number)), bytes(350_000)) for number in range(11)))

    assert isinstance(verdict, Commit)
