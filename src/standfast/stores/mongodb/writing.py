"""Writing: an intent as one transaction, tried again for as long as it was certainly undone.

Three round trips, if nobody waits for hints and nothing is deleted: the time, the counter and the guarded versions as
the snapshot has them; everything that is written; and the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import SYSTEM_CLOCK, Instant, monotonic
from standfast.errors import AttemptClosedError, StoreError, StoreUnavailableError
from standfast.stores.mongodb.abandoned import Abandoned
from standfast.stores.mongodb.connecting import is_duplicate
from standfast.stores.mongodb.documents import (
    NOW,
    STORE,
    attempt_id,
    deletes_of,
    in_commands,
    latest_of,
    lost_guards,
    to_id,
    updates_of,
)
from standfast.stores.mongodb.moving import Announcing
from standfast.stores.mongodb.trouble import (
    DUPLICATE_KEY,
    TROUBLE,
    code_of,
    commit_is_unknown,
    is_transient,
    translate,
    unknown,
)
from standfast.stores.moving.protocol import moved
from standfast.stores.remote.server import Refused, Written
from standfast.stores.rules import in_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo.asynchronous.client_session import AsyncClientSession

    from standfast.keys import RecordKey
    from standfast.stores.mongodb.connecting import Connection
    from standfast.stores.mongodb.drawing import Versions
    from standfast.stores.mongodb.reading import Reading
    from standfast.stores.protocol import Record, Snapshot
    from standfast.stores.remote.server import Intent, Message

    Document = dict[str, Any]

FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05

_SEEN: Final = {"last": 1, "frozen": 1, "drawn_by": 1, "generation": 1, "version": 1, "expires_at": 1, "now": NOW}


class _LostError(Exception):
    """A guard did not hold in the transaction, or somebody else was writing: look what is there."""


@final
class Writing:
    """Writes intents, for one handle."""

    def __init__(self, connection: Connection, reading: Reading, versions: Versions) -> None:
        self._connection, self._reading, self._versions = connection, reading, versions
        self.announcing: Final = Announcing(connection)
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when
        self._in_doubt: Document | None = None
        self._abandoned: Final = Abandoned(connection)

    async def write(self, intent: Intent) -> Written | Refused:
        """Do all of ``intent`` or nothing."""
        await self.announcing.announce(intent.handle)
        loop = asyncio.get_running_loop()
        since = monotonic()
        until = loop.time() + self._connection.options.timeout
        pause, losses = FIRST_PAUSE, 0
        while True:
            try:
                return await self._transact(intent, until)
            except _LostError as lost:
                losses += 1
                refused = _refused(intent, await self._reading.read(list(intent.guards)))
                if refused is not None:
                    return refused
                if loop.time() > until:
                    raise self._busy() from lost.__cause__
                await self._abandoned.end(since)
            except StoreUnavailableError as problem:
                if losses and loop.time() > until:
                    raise self._busy() from problem
                raise
            await asyncio.sleep(self._random.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _busy(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            self._connection.name,
            "transactions of others kept these records for too long; one whose process has died is ended by the server "
            "after its transactionLifetimeLimitSeconds",
        )

    async def _transact(self, intent: Intent, until: float) -> Written | Refused:
        async with self._connection.transaction() as session:
            try:
                async with asyncio.timeout_at(until):
                    done = await self._prepare(intent, session)
            except TROUBLE as problem:
                raise self._undone(intent, problem) from problem
            if isinstance(done, Written):
                await self._commit(session)
            return done

    def _undone(self, intent: Intent, problem: BaseException) -> Exception:
        """Return what a failure before the commit means: nothing can have been written."""
        if is_duplicate(problem, attempt_id(intent.handle)):
            return AttemptClosedError(self._connection.name, f"attempt {intent.handle}.{intent.number} is closed")
        if is_transient(problem) or code_of(problem) == DUPLICATE_KEY:
            return _LostError()
        return translate(self._connection.name, problem)

    async def _prepare(self, intent: Intent, session: AsyncClientSession) -> Written | Refused:
        """Do everything but the commit."""
        sent_at = SYSTEM_CLOCK.elapsed()
        store, at, latest = await self._look(intent, session)
        versions = await self._versions.take(intent, store)
        if versions is None:
            return Refused(at, {}, stale=True)
        await self._change(session, intent, at, versions)
        if intent.messages:
            await self._connection.command(inserting(self._connection, intent.messages), session)
        # The server judged when this was begun. By now it is later by no more than what has passed since.
        if latest is not None and at + (SYSTEM_CLOCK.elapsed() - sent_at) >= latest:
            await session.abort_transaction()  # before it is tried again, so that it is not in its own way
            raise _LostError
        return Written(at, versions, int(store["generation"]))

    async def _look(self, intent: Intent, session: AsyncClientSession) -> tuple[Document, Instant, Instant | None]:
        """Begin the snapshot: read the time, the counter, and the versions that are guarded."""
        wanted = [STORE, *map(to_id, intent.guards)]
        command: Document = {"find": self._connection.records, "filter": {"_id": {"$in": wanted}}, "projection": _SEEN}
        command["batchSize"] = len(wanted) + 1  # all of them at once
        rows = (await self._connection.command(command, session))["cursor"]["firstBatch"]
        store: Document = next(row for row in rows if row["_id"] == STORE)
        if store.get("frozen"):
            raise moved(self._connection.name, int(store["frozen"]))
        at = Instant(int(store["now"]))
        if not in_window(at, intent.after, intent.before) or lost_guards(intent, rows, at):
            raise _LostError
        return store, at, latest_of(intent, rows, at)

    async def _change(self, session: AsyncClientSession, intent: Intent, at: Instant, versions: Sequence[int]) -> None:
        updates = updates_of(intent, at, versions)
        certain, perhaps = deletes_of(intent, at)
        records = self._connection.records
        found = 0
        for some in in_commands(updates):
            found += (await self._connection.command({"update": records, "updates": some}, session))["n"]
        for some in in_commands(certain):
            found += (await self._connection.command({"delete": records, "deletes": some}, session))["n"]
        if found != len(updates) + len(certain):
            raise _LostError
        for some in in_commands(perhaps):
            await self._connection.command({"delete": records, "deletes": some}, session)

    async def _commit(self, session: AsyncClientSession) -> None:
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                await session.commit_transaction()
        except TROUBLE as problem:
            if commit_is_unknown(problem):
                self._in_doubt = dict(session.session_id)
                raise unknown(self._connection.name, problem) from problem
            raise _LostError from problem

    async def end_doubtful(self) -> None:
        """End the transaction whose commit got no answer, if it is still open: it would be in everyone's way."""
        if self._in_doubt is not None:
            with contextlib.suppress(StoreError):  # then the server ends it, in its own time
                await self._connection.ask({"killSessions": [self._in_doubt]})
                self._in_doubt = None


def inserting(connection: Connection, messages: Sequence[Message]) -> Document:
    """Return the command that sends messages."""
    documents = [{"topic": message.topic, "data": message.data} for message in messages]
    return {"insert": connection.messages, "documents": documents}


def _refused(intent: Intent, seen: Snapshot) -> Refused | None:
    """Return what to answer if the guards do not hold, or the window does not; None if they do by now."""
    lost: dict[RecordKey, Record | None] = {
        key: seen.get(key) for key, version in intent.guards.items() if seen.version(key) != version
    }
    if lost or not in_window(seen.at, intent.after, intent.before):
        return Refused(seen.at, lost)
    return None
