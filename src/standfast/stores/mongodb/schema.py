"""The collections: made at the first opening, by whoever comes first, and checked at every one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import UnsuitableStoreError
from standfast.stores.mongodb.connecting import DURABLE
from standfast.stores.mongodb.documents import STORE
from standfast.stores.mongodb.trouble import DUPLICATE_KEY, NAMESPACE_EXISTS, TROUBLE, code_of, translate

if TYPE_CHECKING:
    from standfast.stores.mongodb.connecting import Connection

    Document = dict[str, Any]

SCHEMA: Final = 1
"""The number of the layout. It only grows; a store with a larger one is refused."""

OLDEST_WIRE_VERSION: Final = 13
"""MongoDB 5.0: the first one that reads several documents in one snapshot outside of transactions."""


async def prepare(connection: Connection) -> None:
    """See that the server is suitable and the collections are there; make them if that is wanted."""
    try:
        async with asyncio.timeout(connection.options.connect_timeout + connection.options.timeout):
            _check_server(connection.name, await connection.command({"hello": 1}))
            if connection.options.migrate and await _layout(connection) < SCHEMA:
                await _create(connection)
            await _check(connection)
    except TROUBLE as problem:
        raise translate(connection.name, problem) from problem


def _check_server(name: str, hello: Document) -> None:
    problem = ""
    if hello.get("msg") == "isdbgrid":
        problem = "this is a router of a sharded cluster, which goes by its own time; name a replica set"
    elif "setName" not in hello:
        problem = (
            "this server is no member of a replica set, and so has no transactions; "
            "start it with --replSet and initiate it (one member is enough)"
        )
    elif hello.get("maxWireVersion", 0) < OLDEST_WIRE_VERSION:
        problem = "MongoDB 5.0 or newer is needed"
    if problem:
        raise UnsuitableStoreError(name, problem)


async def _layout(connection: Connection) -> int:
    reply = await connection.command({"find": connection.records, "filter": {"_id": STORE}, "singleBatch": True})
    found = reply["cursor"]["firstBatch"]
    return int(found[0]["schema"]) if found else 0


async def _create(connection: Connection) -> None:
    """Do what is missing, whoever else is doing it too."""
    for name in (connection.records, connection.messages, connection.listeners):
        await _ignoring(NAMESPACE_EXISTS, connection, {"create": name})
    index: Document = {"key": {"expires_at": 1}, "name": "expires_at", "sparse": True}
    await connection.command({"createIndexes": connection.records, "indexes": [index], "writeConcern": DURABLE})
    first = {"schema": SCHEMA, "last": 0, "drawn_by": "", "generation": 1}
    statement = {"q": {"_id": STORE}, "u": {"$setOnInsert": first}, "upsert": True}
    await _ignoring(
        DUPLICATE_KEY, connection, {"update": connection.records, "updates": [statement], "writeConcern": DURABLE}
    )


async def _ignoring(code: int, connection: Connection, command: Document) -> None:
    try:
        await connection.command(command)
    except TROUBLE as problem:
        if code_of(problem) != code:
            raise


async def _check(connection: Connection) -> None:
    layout = await _layout(connection)
    if layout > SCHEMA:
        raise UnsuitableStoreError(
            connection.name,
            f"its layout has number {layout}, this version of Standfast knows {SCHEMA}; upgrade Standfast",
        )
    if layout < SCHEMA:
        raise UnsuitableStoreError(
            connection.name, "its collections are not there yet; open it once with migrate=true, by a user who may"
        )
    reply = await connection.command({"listIndexes": connection.records})
    if any("collation" in index for index in reply["cursor"]["firstBatch"]):
        raise UnsuitableStoreError(
            connection.name,
            f"the collection {connection.records} sorts by a language; drop it and let Standfast make it",
        )
