"""Transactions whose process has died or stands still: they keep their records from everybody.

The server ends them after a minute, unless it is set otherwise. Who is in the way of one for a while ends it sooner:
every user may see and end the sessions of its own. Nothing is lost by that: whoever wakes up again is told that its
transaction was undone, and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import monotonic
from standfast.stores.mongodb.connecting import APP_NAME
from standfast.stores.mongodb.trouble import TROUBLE

if TYPE_CHECKING:
    from standfast.stores.mongodb.connecting import Connection

    Document = dict[str, Any]

FIRST_LOOK: Final = 0.5
LOOK_EVERY: Final = 1.0
"""How many seconds of losing pass before the first look, and how many lie between two looks."""

STANDS_STILL: Final = 2_000_000
"""A transaction that has sent nothing for so many microseconds is given up; others send something every few hundred."""


@final
class Abandoned:
    """Ends what others have left behind, for one handle."""

    __slots__ = ("_connection", "_looked_at")

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._looked_at = -LOOK_EVERY

    async def end(self, lost_since: float) -> None:
        """Look for transactions of this user's that stand still, and end them; not too often, nor too soon."""
        now = monotonic()
        if now - lost_since < FIRST_LOOK or now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        with contextlib.suppress(*TROUBLE):  # then the server ends them, in its own time
            async with asyncio.timeout(self._connection.options.timeout):
                await self._end_all()

    async def _end_all(self) -> None:
        admin, limit = self._connection.client.admin, self._connection.milliseconds
        reply = await admin.command({"aggregate": 1, "pipeline": _standing_still(), "cursor": {}, "maxTimeMS": limit})
        found = [row["lsid"] for row in reply["cursor"]["firstBatch"]]
        if found:
            await admin.command({"killSessions": found, "maxTimeMS": limit})


def _standing_still() -> list[Document]:
    idle = {"type": "idleSession", "appName": APP_NAME, "transaction.timeInactiveMicros": {"$gt": STANDS_STILL}}
    mine = {"allUsers": False, "idleSessions": True}
    return [{"$currentOp": mine}, {"$match": idle}, {"$project": {"lsid.id": 1}}]
