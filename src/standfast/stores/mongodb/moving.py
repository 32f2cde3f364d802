"""Moving everything in a database.

The document of the store says that it is frozen, and every transaction reads it along with the counter. But one that
has begun before would still see the store open. So each handle has a document for its attempts before it begins its
first transaction, and every transaction writes to it; whoever freezes writes to all of them afterwards. A transaction
that is under way is waited for, if it has written there, or undone by the server, if it is about to; and one whose
handle came too late to be found has begun after the store was frozen, and sees it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import monotonic
from standfast.errors import StoreBusyError
from standfast.stores.mongodb.connecting import DURABLE
from standfast.stores.mongodb.documents import (
    AFTER_ATTEMPTS,
    ATTEMPT,
    NOW,
    STORE,
    attempt_id,
    in_commands,
    salt,
    to_id,
)
from standfast.stores.mongodb.trouble import TROUBLE, translate
from standfast.stores.moving.paging import pages
from standfast.stores.moving.protocol import OPEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.stores.mongodb.connecting import Connection
    from standfast.stores.moving.paging import Scan
    from standfast.stores.protocol import Record

    Document = dict[str, Any]

ANNOUNCED_FOR: Final = 24 * 3600.0
"""For how many seconds a handle may be sure that its document is there: it is swept a week after its last attempt."""

PATIENCE: Final = 75.0
"""For how many seconds transactions under way are waited for: the server ends them after sixty."""

_PAUSE: Final = 0.05


@final
class Announcing:
    """Sees to it that the document of a handle's attempts is there before its transactions begin."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._since: Final[dict[str, float]] = {}

    async def announce(self, handle: str) -> None:
        """Make the document if that was not done lately."""
        now = monotonic()
        if now - self._since.get(handle, -ANNOUNCED_FOR) < ANNOUNCED_FOR:
            return
        made = {"number": {"$ifNull": ["$number", 0]}, "at": NOW, "salt": salt(handle)}
        statement = {"q": {"_id": attempt_id(handle)}, "u": [{"$set": made}], "upsert": True}
        await self._connection.ask(
            {"update": self._connection.records, "updates": [statement], "writeConcern": DURABLE}
        )
        self._since[handle] = now

    def forget(self, handle: str) -> None:
        """Forget a handle whose document is removed."""
        self._since.pop(handle, None)


@final
class MongoMoving:
    """Everything in one collection."""

    def __init__(self, connection: Connection, scan: Scan) -> None:
        self._connection, self._scan = connection, scan

    async def _store(self) -> Document:
        command = {"find": self._connection.records, "filter": {"_id": STORE}, "readConcern": {"level": "majority"}}
        found: Document = (await self._connection.ask(command))["cursor"]["firstBatch"][0]
        return found

    async def _change(self, wanted: Document, change: Document | list[Document], *, multi: bool = False) -> None:
        statement = {"q": wanted, "u": change, "multi": multi}
        await self._connection.ask(
            {"update": self._connection.records, "updates": [statement], "writeConcern": DURABLE}
        )

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return int((await self._store()).get("frozen", OPEN))

    async def freeze(self, reason: int) -> None:
        """Refuse writes, when those under way have ended."""
        await self._change({"_id": STORE, "frozen": {"$in": [None, OPEN]}}, {"$set": {"frozen": reason}})
        until = monotonic() + PATIENCE
        while not await self._meet_all():
            if monotonic() > until:
                problem = "transactions under way did not end; the store is frozen, but they may land; repeat this"
                raise StoreBusyError(self._connection.name, problem)
            await asyncio.sleep(_PAUSE)

    async def _meet_all(self) -> bool:
        """Write to the documents of all attempts; False if one is being written to."""
        attempts = {"_id": {"$gte": ATTEMPT, "$lt": AFTER_ATTEMPTS}}
        statement = {"q": attempts, "u": {"$inc": {"met": 1}}, "multi": True}
        command = {"update": self._connection.records, "updates": [statement], "writeConcern": DURABLE}
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                await self._connection.command(command)
        except TimeoutError:
            return False
        except TROUBLE as problem:
            if getattr(problem, "timeout", False):  # the server's own: a document was locked for all of the time
                return False
            raise translate(self._connection.name, problem) from problem
        return True

    async def thaw(self) -> None:
        """Take writes again."""
        await self._change({"_id": STORE}, {"$unset": {"frozen": 1}})

    async def last(self) -> int:
        """Return the last version that was given out."""
        return int((await self._store())["last"])

    async def lift(self, version: int) -> None:
        """Go on above a version; versions that handles have drawn in advance are not used for keys to be created."""
        await self._change({"_id": STORE}, [{"$set": {"last": {"$max": ["$last", version]}, "drawn_by": ""}}])

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        for some in in_commands(map(_written, records)):
            await self._connection.ask({"update": self._connection.records, "updates": some, "writeConcern": DURABLE})


def _written(record: Record) -> Document:
    document: Document = {"version": record.version, "value": record.value}
    if record.expires_at is not None:
        document["expires_at"] = record.expires_at
    return {"q": {"_id": to_id(record.key)}, "u": document, "upsert": True}
