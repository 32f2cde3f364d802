"""A table on an emulator of DynamoDB, and what happens to requests on their way to it."""

from __future__ import annotations

import functools
import itertools
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from standfast.keys import RecordKey
from standfast.stores.dynamodb import DynamoServer
from standfast.stores.remote import RemoteBackend
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from standfast.stores import GroupedStore

    Operation = Callable[..., Awaitable[Any]]


@pytest.fixture
def url(dynamodb_url: str) -> str:
    """The table that tests share, each in a namespace of its own."""
    return f"{dynamodb_url}&create=true&shortest_lease=200ms"


@pytest.fixture
def fresh_url(dynamodb_url: str) -> str:
    """A table of the test's own, which does not exist yet."""
    return dynamodb_url.replace("/standfast?", f"/t-{uuid.uuid4().hex}?")


@pytest.fixture
def key() -> Callable[..., RecordKey]:
    """Makes keys in a namespace that no other test uses."""
    return functools.partial(RecordKey, f"dynamodb-{uuid.uuid4().hex}")


@pytest.fixture
async def store(url: str) -> AsyncIterator[GroupedStore]:
    """A handle on the table."""
    store = await open_store(url)
    yield store
    await store.aclose()


@pytest.fixture
def wire(store: GroupedStore) -> Wire:
    """What happens to the requests of ``store``."""
    return Wire(server_of(store))


def server_of(store: GroupedStore) -> DynamoServer:
    """Return what is below a store."""
    backend = store.backend
    assert isinstance(backend, RemoteBackend)
    assert isinstance(backend.server, DynamoServer)
    return backend.server


class Wire:
    """The way between a handle and the service: what was sent, and what goes wrong with it.

    Attributes:
        sent: The operations and requests so far.
        stuck: The requests that did not get through.
    """

    def __init__(self, server: DynamoServer) -> None:
        self._client: Any = server.link.client
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.stuck: list[Mapping[str, Any]] = []
        for operation in ("get_item", "transact_get_items", "query", "put_item", "transact_write_items", "delete_item"):
            self._tap(operation)

    def _tap(self, operation: str) -> None:
        send = getattr(self._client, operation)

        async def tapped(**request: Any) -> Any:
            self.sent.append((operation, request))
            return await send(**request)

        setattr(self._client, operation, tapped)

    def disturb(self, operation: str, *problems: Exception, after: bool = False) -> None:
        """Raise these, one after the other, in place of the request; ``after``: it is done, and the answer is lost."""
        send, left = getattr(self._client, operation), list(problems)

        async def disturbed(**request: Any) -> Any:
            answer = await send(**request) if after or not left else None
            if left:
                self.stuck.append(request)
                raise left.pop(0)
            return answer

        setattr(self._client, operation, disturbed)

    def before_each(self, operation: str, work: Mapping[int, Callable[[], Awaitable[None]]]) -> None:
        """Do something before the request of a number, counted from 1."""
        send, numbers = getattr(self._client, operation), itertools.count(1)

        async def preceded(**request: Any) -> Any:
            number = next(numbers)
            if number in work:
                await work[number]()
            return await send(**request)

        setattr(self._client, operation, preceded)

    def double(self, operation: str) -> None:
        """Let something on the way send the request twice, long enough apart that its token is forgotten."""
        send = getattr(self._client, operation)

        async def doubled(**request: Any) -> Any:
            await send(**{name: value for name, value in request.items() if name != "ClientRequestToken"})
            return await send(**{name: value for name, value in request.items() if name != "ClientRequestToken"})

        setattr(self._client, operation, doubled)

    def requests(self, operation: str) -> list[Mapping[str, Any]]:
        """Return what was sent."""
        return [request for name, request in self.sent if name == operation]
