"""Tables of a test's own on a libSQL server, SQL beside the store, and servers that want tokens."""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from standfast.keys import RecordKey
from standfast.stores.address import Address
from standfast.stores.libsql.connection import LibsqlConnection, read_options
from standfast.stores.libsql.hrana import BatchResults, HranaBatch
from standfast.stores.url import open_store
from tests import services

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from pathlib import Path

    from standfast.stores import GroupedStore
    from tests.services.server import Server


@pytest.fixture
def url(libsql_url: str) -> str:
    """Tables that no other test uses, on the server that all share."""
    return f"{libsql_url}&prefix=t{uuid.uuid4().hex[:20]}_"


@pytest.fixture
async def store(url: str) -> AsyncIterator[GroupedStore]:
    """A store in those tables."""
    async with opened(url) as store:
        yield store


@pytest.fixture
def key() -> Callable[..., RecordKey]:
    """Makes keys."""
    return functools.partial(RecordKey, "libsql")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own."""
    with services.private("libsql") as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[GroupedStore]:
    """Open a store, and close it in the end."""
    store = await open_store(url, **options)
    try:
        yield store
    finally:
        await store.aclose()


async def sql(url: str, *statements: str) -> list[list[list[Any]]]:
    """Run statements beside the store; ``{p}`` stands for the prefix of its tables. Return the rows of each."""
    options = read_options(Address(url))
    caller, batch = LibsqlConnection(options), HranaBatch()
    for statement in statements:
        batch.add(statement.format(p=options.prefix))
    results = await caller.write(batch)
    await caller.aclose()
    assert isinstance(results, BatchResults)
    assert results.failure() is None, results.failure()
    return [results.rows(step) for step in range(len(statements))]


class Tokens:
    """Signs tokens for a server that knows the public half."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()

    @property
    def public_key(self) -> str:
        """What the server is to know."""
        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return _text(raw)

    def token(self, **claims: Any) -> str:
        """Return a token: ``a="rw"`` or ``a="ro"``, and when it runs out, ``exp``."""
        header = {"alg": "EdDSA", "typ": "JWT"}
        signed = ".".join(_text(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_text(self._key.sign(signed.encode()))}"


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture
def tokens() -> Tokens:
    """Tokens of one key."""
    return Tokens()


@pytest.fixture
def guarded_server(tokens: Tokens, tmp_path: Path) -> Iterator[Server]:
    """A server that wants a token."""
    file = tmp_path / "public key"
    file.write_text(tokens.public_key)
    with services.private("libsql", arguments=["--auth-jwt-key-file", str(file)]) as server:
        yield server
