"""Writing: an intent in one round trip, tried again while it is certain that nothing landed."""

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, final

from standfast.clock import Instant, monotonic
from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreBusyError
from standfast.stores.moving.protocol import moved
from standfast.stores.mysql import statements as sql
from standfast.stores.mysql.linking import TROUBLE
from standfast.stores.mysql.records import live
from standfast.stores.mysql.trouble import (
    DEADLOCK,
    DUPLICATE,
    LOCK_TIMEOUT,
    NOT_SENT,
    NULL_REFUSED,
    code_of,
    is_certain,
    translated,
)
from standfast.stores.protocol import ABSENT
from standfast.stores.remote.server import Refused, Written
from standfast.stores.rules import in_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.keys import RecordKey
    from standfast.stores.mysql.linking import Link, Links, Rows
    from standfast.stores.mysql.options import Names, Options
    from standfast.stores.protocol import Record
    from standfast.stores.remote.server import Intent

TRIES: Final = 30
"""How often a transaction that was chosen to end a deadlock, or that lost a race to create a key, is tried at most."""

BEFORE_COUNTING: Final = 3
"""How many statements come before the one that judges the guards."""

LONGEST_PAUSE: Final = 0.05
_AGAIN: Final = frozenset({DEADLOCK, DUPLICATE, LOCK_TIMEOUT, NULL_REFUSED}) | NOT_SENT
"""What is tried again: a deadlock, a lost race, or a connection that had died while nobody used it."""


@final
class Writing:
    """The writes of one handle."""

    def __init__(self, options: Options, links: Links, longest_packet: int) -> None:
        self._options, self._links, self._longest = options, links, longest_packet
        self._names: Final = options.names
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when

    async def write(self, intent: Intent) -> Written | Refused:
        """Do all of an intent or nothing.

        Raises:
            AttemptClosedError: The attempt was counted before.
            OutcomeUnknownError: It may have been written.
            StoreError: It was certainly not.
        """
        deadline = monotonic() + self._options.timeout
        for tries in range(TRIES):
            answer = await self._try(intent)
            if not isinstance(answer, Exception):
                return answer
            if code_of(answer) not in _AGAIN or monotonic() > deadline:
                raise translated(answer, self._options.name) from answer
            await asyncio.sleep(self._random.uniform(0, min(LONGEST_PAUSE, 0.001 * 2**tries)))
        raise StoreBusyError(self._options.name, f"it was undone {TRIES} times in a row in favour of others; retry")

    async def _try(self, intent: Intent) -> Written | Refused | Exception:
        """Send it; return the driver's error if nothing was written."""
        answers: list[Rows] = []
        async with self._links.borrow() as link:
            try:
                await self._send(link, intent, answers)
            except TROUBLE as problem:
                if code_of(problem) == NULL_REFUSED and len(answers) == BEFORE_COUNTING:
                    return await see_why(link, intent, self._options)
                await link.undo(self._options.timeout)
                return problem
        at, first = answers[-2][0]
        return Written(Instant(at), intent.exact or tuple(range(first, first + intent.draws)))

    async def _send(self, link: Link, intent: Intent, answers: list[Rows]) -> None:
        *first, last = sql.packets(self._statements(intent), self._longest)
        for packet in first:
            await link.run(packet, self._options.timeout, answers)
        try:
            await link.run(last, self._options.timeout, answers)
        except TROUBLE as problem:
            if is_certain(problem):
                raise
            attempt = f"{intent.handle}.{intent.number}"
            unknown = translated(problem, self._options.name)
            raise OutcomeUnknownError(self._options.name, unknown.problem, attempt) from problem

    def _statements(self, intent: Intent) -> Iterator[str]:
        names, guards, count = self._names, guards_of(intent), count_of(intent)
        yield "START TRANSACTION"
        yield sql.lock(names, guards)
        yield sql.look_at_time(names, count)
        yield sql.count_attempt(names, guards, count)
        yield from changes_of(names, intent)
        yield "SELECT @sf_t,@sf_b"
        yield "COMMIT"


async def see_why(link: Link, intent: Intent, options: Options) -> Refused:
    """Find out what did not hold, while all the locks are still held and nothing is changed yet; then let go.

    Raises:
        AttemptClosedError: The attempt was counted before.
        StoreMovedError: The store is frozen.
    """
    asked = [
        "SELECT @sf_t,@sf_b,@sf_l,@sf_f",
        f"SELECT number FROM {options.names.attempts} WHERE handle={sql.handle_literal(intent.handle)}",
        sql.fetch(options.names, intent.guards),
        "ROLLBACK",
    ]
    try:
        facts, counted, rows, _ = await link.run(";".join(asked), options.timeout)
    except TROUBLE as problem:
        raise translated(problem, options.name) from problem
    at, first, lowest, frozen = facts[0]
    if frozen:
        raise moved(options.name, int(frozen))
    if counted and counted[0][0] >= intent.number:
        raise AttemptClosedError(options.name, f"attempt {intent.handle}.{intent.number} is over")
    return judged(intent, Instant(at), rows, is_stale=first < lowest)


def guards_of(intent: Intent) -> sql.Guards:
    """Return what an intent rests on."""
    return sql.Guards(intent.guards, intent.after, intent.before)


def count_of(intent: Intent) -> sql.Count:
    """Return which attempt an intent is, and what it takes."""
    creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
    first = intent.exact[0] if intent.exact else None
    draws = len(intent.exact) or intent.draws
    return sql.Count(intent.handle, intent.number, draws, first, creates)


def changes_of(names: Names, intent: Intent) -> Iterator[str]:
    """Return the statements that write: rows that are there first, then those that are not, each in order."""
    puts = [row for row in intent.puts if intent.guards[row.key] != ABSENT]
    creates = [row for row in intent.puts if intent.guards[row.key] == ABSENT]
    if puts:
        yield from sql.put(names, puts)
    if intent.deletes:
        yield sql.bury(names, intent.deletes)
    if creates:
        yield from sql.create(names, creates)
        yield sql.check_floor(names, intent.handle)


def judged(intent: Intent, at: Instant, rows: Rows, *, is_stale: bool) -> Refused:
    """Return why an intent was refused at ``at``, with the rows as they were."""
    records = live(rows, at)
    lost: dict[RecordKey, Record | None] = {
        key: records.get(key)
        for key, version in intent.guards.items()
        if (records[key].version if key in records else ABSENT) != version
    }
    is_missed = not in_window(at, intent.after, intent.before)
    return Refused(at, lost, stale=is_stale and not lost and not is_missed)
