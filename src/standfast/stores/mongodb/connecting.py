"""Connecting: the driver's client, and commands with a time limit each.

The driver keeps the connections, finds the primary and comes back after a failure. It tries nothing twice here,
except a read and the commit of a transaction, which the server does once however often it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

from pymongo import AsyncMongoClient, errors
from pymongo.errors import WriteConcernError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from standfast.stores.mongodb.trouble import DUPLICATE_KEY, TROUBLE, code_of, may_have_happened, translate, unknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.asynchronous.collection import AsyncCollection

    from standfast.stores.mongodb.options import Options
    from standfast.stores.remote.addresses import Address

    Document = dict[str, Any]

SNAPSHOT: Final = ReadConcern("snapshot")
MAJORITY: Final = WriteConcern("majority", j=True)
DURABLE: Final = {"w": "majority", "j": True}
HERE: Final = {"w": 1}
"""For what is durable as soon as a later commit is: the primary's log is copied in its order."""

ENDED_WITHIN: Final = 1.0
APP_NAME: Final = "standfast"
"""By which sessions of handles are told apart from those of other programs."""


@final
class Connection:
    """One handle's client."""

    def __init__(self, address: Address, options: Options) -> None:
        self.address, self.options = address, options
        self.name: Final = address.name
        self.client: Final = _client(address, options)
        self.database: Final = self.client[options.database]
        self.records: Final = f"{options.prefix}_records"
        self.messages: Final = f"{options.prefix}_messages"
        self.listeners: Final = f"{options.prefix}_listeners"
        self._ending: Final[set[asyncio.Task[None]]] = set()
        self.milliseconds: Final = max(1, int(options.timeout * 1000))

    def collection(self, name: str) -> AsyncCollection[Document]:
        """Return a collection to read from."""
        return self.database[name]

    async def command(self, command: Document, session: AsyncClientSession | None = None) -> Document:
        """Send a command, with the driver's errors; those that a reply carries are raised as well."""
        command["maxTimeMS"] = self.milliseconds
        return _checked(await self.database.command(command, session=session))

    async def ask(self, command: Document) -> Document:
        """Send a command that may be sent again, or that nothing depends on."""
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self.command(command)
        except TROUBLE as problem:
            raise translate(self.name, problem) from problem

    async def change(self, command: Document) -> Document:
        """Send a command whose outcome matters."""
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self.command({**command, "writeConcern": DURABLE})
        except TROUBLE as problem:
            if may_have_happened(problem):
                raise unknown(self.name, problem) from problem
            raise translate(self.name, problem) from problem

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncClientSession]:
        """A transaction on one snapshot. What is not committed is undone, a little later: nobody waits for that."""
        session = self.client.start_session(causal_consistency=False)
        try:
            await session.start_transaction(SNAPSHOT, MAJORITY, max_commit_time_ms=self.milliseconds)
            yield session
        finally:
            ending = asyncio.get_running_loop().create_task(_end(session))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._ending:
            await asyncio.wait(self._ending)
        await self.client.close()


async def _end(session: AsyncClientSession) -> None:
    with contextlib.suppress(*TROUBLE):  # then the server ends it, in its own time
        async with asyncio.timeout(ENDED_WITHIN):
            await session.end_session()


def _client(address: Address, options: Options) -> AsyncMongoClient[Document]:
    host = [f"mongodb+srv://{options.hosts[0].rpartition(':')[0]}/"] if options.is_srv else list(options.hosts)
    try:
        return AsyncMongoClient(
            host,
            username=address.user,
            password=address.password if address.user else None,
            tls=options.tls,
            maxPoolSize=options.pool,
            connectTimeoutMS=int(options.connect_timeout * 1000),
            serverSelectionTimeoutMS=int(options.connect_timeout * 1000),
            waitQueueTimeoutMS=int(options.timeout * 1000),
            retryWrites=False,
            serverMonitoringMode="poll",  # one connection less a handle; a failed command has it look at once anyway
            appname=APP_NAME,
            **options.driver,
        )
    except (errors.PyMongoError, ValueError, TypeError, OSError) as problem:  # OSError: a certificate's file
        raise address.refuse(f"the driver refuses it: {problem}") from None


def _checked(reply: Document) -> Document:
    for failed in reply.get("writeErrors", ()):
        raise errors.OperationFailure(failed.get("errmsg", "refused"), failed.get("code"), failed)
    late = reply.get("writeConcernError")
    if late is not None:
        raise WriteConcernError(late.get("errmsg", "not confirmed"), late.get("code"), late)
    return reply


def is_duplicate(problem: BaseException, document: str) -> bool:
    """Tell whether a write failed because ``document`` is there already."""
    if not isinstance(problem, errors.OperationFailure) or code_of(problem) != DUPLICATE_KEY:
        return False
    details = problem.details or {}
    return bool(details.get("keyValue", {}).get("_id") == document)
