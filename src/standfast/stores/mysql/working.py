"""The user's own SQL inside one of our transactions.

It runs between our locks and our writes. If it ends the transaction on the way (``COMMIT``, ``ROLLBACK``, or a change
of a table, which commits by itself here), that is noticed before anything of ours is written.
"""

from __future__ import annotations

import asyncio
import inspect
from copy import copy
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import OutcomeUnknownError, StoreBusyError, StoreError, WorkTimeoutError
from standfast.stores.backend import WorkRider
from standfast.stores.fold import as_exception
from standfast.stores.mysql import statements as sql
from standfast.stores.mysql.linking import TROUBLE, session_of
from standfast.stores.mysql.trouble import (
    DEADLOCK,
    DUPLICATE,
    LOCK_TIMEOUT,
    LOST,
    NULL_REFUSED,
    code_of,
    is_certain,
    translated,
)
from standfast.stores.mysql.writing import changes_of, count_of, guards_of, judged, see_why
from standfast.stores.protocol import Conflict, Delete, Put, Worked
from standfast.stores.remote.server import Intent, Refused, Row
from standfast.stores.rules import check_commit, in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome
    from standfast.stores.mysql.linking import Link, Links, Rows
    from standfast.stores.mysql.options import Options
    from standfast.stores.protocol import Capabilities, Change

_NO_SAVEPOINT: Final = 1305
_BEFORE_WRITING: Final = 3
"""How many statements have succeeded once the guards held."""

_UNDONE: Final = LOST | {DEADLOCK, LOCK_TIMEOUT}
_ENDED: Final = (
    "the work ended the transaction it was in (COMMIT, ROLLBACK, or a statement such as CREATE TABLE that commits by "
    "itself); nothing of this commit was written, but what the work itself did may have been"
)


@final
class SqlWork:
    """What ``commit_with`` hands to the work: SQL on the caller's own tables, for as long as the call lasts."""

    __slots__ = ("_link", "_name", "trouble")

    def __init__(self, link: Link, name: str) -> None:
        self._link: Link | None = link
        self._name = name
        self.trouble: StoreError | None = None
        """What the store could not do in the middle of the work; the transaction is over then."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 -- the driver has types in name only
        """The connection of the driver, ``asyncmy``, for what else it can do. Leave the transaction to the store."""
        return self._open().connection

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, with ``%s`` where parameters go, and return its rows."""
        cursor = self._open().connection.cursor()
        try:
            await cursor.execute(statement, tuple(parameters) or None)
            return list(await cursor.fetchall()) if cursor.description else []
        except TROUBLE as problem:
            raise self._told(problem) from problem

    async def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run one statement once for each set of parameters."""
        cursor = self._open().connection.cursor()
        try:
            await cursor.executemany(statement, [tuple(each) for each in parameters])
        except TROUBLE as problem:
            raise self._told(problem) from problem

    def _told(self, problem: Exception) -> Exception:
        """Return what the work is told: its own mistakes as the driver says them, the rest in words of the store."""
        if code_of(problem) not in _UNDONE:
            return problem
        self.trouble = translated(problem, self._name)
        return self.trouble

    def _open(self) -> Link:
        if self._link is None:
            raise RuntimeError("the transaction is over; do all the work inside the function given to commit_with")
        return self._link

    def end(self) -> None:
        """Make it unusable."""
        self._link = None


class _Job(Struct, frozen=True):
    rider: WorkRider
    handle: str
    number: int

    @property
    def attempt(self) -> str:
        return f"{self.handle}.{self.number}"


@final
class Working:
    """Transactions that are shared with the caller's own SQL."""

    def __init__(self, options: Options, links: Links, longest_packet: int, limits: Capabilities) -> None:
        self._options, self._links, self._longest, self._limits = options, links, longest_packet, limits
        self._names: Final = options.names

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], None]) -> Outcome:
        """Do the work and the commit together; return what came of them, or what the work raised."""
        await self._links.ask("DO 1")  # a connection that died while nobody used it is found out here
        job = _Job(rider, handle, number)
        async with self._links.borrow() as link:
            try:
                outcome = await self._prepare(link, job)
                if isinstance(outcome, Worked):
                    note(outcome)
                    await self._commit(link, job)
                elif isinstance(outcome, Conflict):
                    await link.undo(self._options.timeout)
                else:
                    link.drop()  # which settings of the session the work has changed, nobody knows
            except TROUBLE as problem:
                raise translated(problem, self._options.name) from problem
        return outcome

    async def _prepare(self, link: Link, job: _Job) -> Outcome:
        """Do everything but commit."""
        intent = intent_of(job, job.rider.commit.changes)
        begun = await self._begin(link, intent)
        if begun.current or not in_window(begun.at, intent.after, intent.before):
            return Conflict(begun.at, begun.current)
        try:
            answer, changes = await self._do(link, job.rider)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as problem:  # noqa: BLE001 -- it is the caller's own, and is raised to it alone
            return as_exception(problem)
        refused, versions = await self._write(link, intent_of(job, changes), begun.at)
        if refused is not None:
            return Conflict(refused.at, refused.current)
        return Worked(answer, begun.at, versions)

    async def _begin(self, link: Link, intent: Intent) -> Refused:
        """Lock the rows of the first changes; return what is wrong with them, if anything is."""
        locked = f"{sql.fetch(self._names, intent.guards)} FOR UPDATE"
        statements = ["START TRANSACTION", "SAVEPOINT sf", locked, f"SELECT {sql.NOW}"]
        _, _, rows, ((at,),) = await link.run(";".join(statements), self._options.timeout)
        return judged(intent, Instant(at), rows, is_stale=False)

    async def _do(self, link: Link, rider: WorkRider) -> tuple[Any, tuple[Change, ...]]:
        """Run the work with a time limit; return its answer and all changes to commit with it."""
        work, changes = SqlWork(link, self._options.name), rider.commit.changes
        limit = asyncio.timeout(rider.seconds)
        try:
            async with limit:
                answer = rider.work(work)
                answer = await answer if inspect.isawaitable(answer) else answer
                if rider.and_then is not None:
                    changes = (*changes, *rider.and_then(answer))
        except TimeoutError as problem:
            if not limit.expired():
                raise
            link.drop()
            message = f"the work took longer than {rider.seconds:g} s; everything was undone"
            raise WorkTimeoutError(self._options.name, message) from problem
        except Exception:
            if work.trouble is None:
                raise
            # Another one than the work saw: this is no outcome of the work, which was undone and can be done again.
            raise copy(work.trouble) from None
        finally:
            work.end()
        if work.trouble is not None:
            raise work.trouble
        if len(changes) > len(rider.commit.changes):
            check_commit(changes, rider.commit.wake, self._limits)
        await self._check_transaction(link)
        return answer, changes

    async def _check_transaction(self, link: Link) -> None:
        """See that it is still the same transaction, and put settings back that the work may have changed."""
        try:
            await link.run(f"RELEASE SAVEPOINT sf;{session_of(self._options)}", self._options.timeout)
        except TROUBLE as problem:
            if code_of(problem) == _NO_SAVEPOINT:
                raise StoreError(self._options.name, _ENDED) from problem
            raise translated(problem, self._options.name) from problem

    async def _write(self, link: Link, intent: Intent, at: Instant) -> tuple[Refused | None, dict[RecordKey, int]]:
        """Write everything, as of ``at``: what held when the work began does not fail for its age."""
        answers: list[Rows] = []
        count = count_of(intent)
        statements = [
            sql.lock(self._names, guards_of(intent)),
            sql.look_at_time(self._names, count, since=at),
            sql.count_attempt(self._names, guards_of(intent), count),
            *changes_of(self._names, intent),
            "SELECT @sf_b",
        ]
        try:
            for packet in sql.packets(statements, self._longest):
                await link.run(packet, self._options.timeout, answers)
        except TROUBLE as problem:
            if code_of(problem) not in {NULL_REFUSED, DUPLICATE}:
                raise
            return await self._refused(link, intent, is_judged=len(answers) < _BEFORE_WRITING), {}
        version = int(answers[-1][0][0])
        return None, {row.key: version for row in intent.puts}

    async def _refused(self, link: Link, intent: Intent, *, is_judged: bool) -> Refused:
        if is_judged:
            return await see_why(link, intent, self._options)
        statements = ["ROLLBACK", f"SELECT {sql.NOW}", sql.fetch(self._names, intent.guards)]
        _, ((at,),), rows = await link.run(";".join(statements), self._options.timeout)
        refused = judged(intent, Instant(at), rows, is_stale=False)
        if not refused.current:
            raise StoreBusyError(self._options.name, "others wrote the same keys meanwhile; nothing was written; retry")
        return refused

    async def _commit(self, link: Link, job: _Job) -> None:
        try:
            await link.run("COMMIT", self._options.timeout)
        except TROUBLE as problem:
            if is_certain(problem):
                raise
            unknown = translated(problem, self._options.name)
            raise OutcomeUnknownError(self._options.name, unknown.problem, job.attempt) from problem


def intent_of(job: _Job, changes: Sequence[Change]) -> Intent:
    """Return a commit as an intent: one version for all that it writes."""
    puts = tuple(Row(each.key, each.value, 0, each.expires_at) for each in changes if isinstance(each, Put))
    return Intent(
        job.handle,
        job.number,
        {each.key: each.expected for each in sorted(changes, key=_key_of)},
        tuple(sorted(puts, key=_key_of)),
        tuple(sorted(each.key for each in changes if isinstance(each, Delete))),
        1,
        (),
        job.rider.commit.after,
        job.rider.commit.before,
    )


def _key_of(each: Change | Row) -> RecordKey:
    return each.key
