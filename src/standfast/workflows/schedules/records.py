"""How a schedule lies in a store: one record with all of it, and one in the timer index for when it is looked at."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.codec import Codec
from standfast.keys import RecordKey
from standfast.stores.protocol import Conflict, Delete, Put
from standfast.workflows.schedules.specification import SPECS, ScheduleSpec
from standfast.workflows.schedules.timing import ScheduleState, due
from standfast.workflows.storing.records import NO_DUE, timer_key

if TYPE_CHECKING:
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Commit, Record

PAGE: Final = 100
TIMER: Final = "@"
"""What the name of a schedule begins with in the timer index. No run's id does."""


class Stored(Struct, frozen=True, omit_defaults=True):
    """A schedule.

    Attributes:
        spec: What it is.
        state: Where it is.
        created_at: Since when it is there.
        wake_at: When it is to be looked at: the name of its record in the timer index; None: it has none.
        note: Why it is paused.
        lacks: What this schedule could not find when it paused itself; empty: somebody has paused it.
        skipped: How many ticks started nothing because of an unfinished run.
        refused: How many started nothing because of a limit, or an error.
        last_skipped_at: The latest tick that started nothing.
        problem: Why it did not.
        last_run: The run of the latest tick that started one.
        declared: A digest of what the code of an engine last said.
        is_emptying: Runs that wait for their turn are to be discarded.
        is_deleted: It is to be removed when that is done.
    """

    spec: ScheduleSpec
    state: ScheduleState
    created_at: Instant
    wake_at: Instant | None = None
    note: str = ""
    lacks: str = ""
    skipped: int = 0
    refused: int = 0
    last_skipped_at: Instant | None = None
    problem: str = ""
    last_run: str = ""
    declared: str = ""
    is_emptying: bool = False
    is_deleted: bool = False


STORED: Final[Codec[Stored]] = Codec(Stored, what="a schedule")


class Seen(Struct, frozen=True):
    """A schedule as it was found, with the versions that guard a change of it."""

    id: str
    stored: Stored
    at: Instant
    key: RecordKey
    version: int
    timer_version: int


def key_of(scope: Scope, schedule_id: str) -> RecordKey:
    """Return where a schedule lies."""
    return scope.key("schedule", schedule_id)


def line_of(schedule_id: str) -> tuple[str, ...]:
    """Return where the line of a schedule's runs lies."""
    return ("schedule", schedule_id)


async def find(scope: Scope, schedule_id: str, wake_at: Instant | None = None) -> Seen | None:
    """Read a schedule, also one that is being deleted; None: there is none. It saves a look to know its ``wake_at``."""
    key = key_of(scope, schedule_id)
    while True:
        timer = None if wake_at is None else timer_key(scope, wake_at, TIMER + schedule_id)
        seen = await scope.read(key) if timer is None else await scope.read(key, timer)
        record = seen.get(key)
        if record is None:
            return None
        stored = STORED.decode(record.value)
        if stored.wake_at == wake_at:
            version = 0 if timer is None else seen.version(timer)
            return Seen(schedule_id, stored, seen.at, key, record.version, version)
        wake_at = stored.wake_at


async def find_all(scope: Scope) -> list[tuple[str, Stored, Instant]]:
    """Read all schedules, in the order of their ids, and when that was."""
    start, end = scope.key("schedule").within()
    found: list[tuple[str, Stored, Instant]] = []
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        found += [(_id_of(record), STORED.decode(record.value), page.at) for record in page.records.values()]
        if page.more is None:
            return found
        start = page.more


def _id_of(record: Record) -> str:
    return record.key.parts[-1]


def with_timer(stored: Stored, schedule_id: str) -> Stored:
    """Return a schedule with the time at which it is to be looked at."""
    # Asked for the beginning of time, nothing is due, and the answer is when the next tick fires.
    return structs.replace(stored, wake_at=due(stored.spec, schedule_id, stored.state, Instant(0)).wake_at)


def creating(scope: Scope, schedule_id: str, stored: Stored) -> list[Change]:
    """Return the changes that write a schedule which is not there yet."""
    changes: list[Change] = [Put(key_of(scope, schedule_id), STORED.encode_own(stored))]
    if stored.wake_at is not None:
        changes.append(Put(timer_key(scope, stored.wake_at, TIMER + schedule_id), NO_DUE))
    return changes


def changing(scope: Scope, seen: Seen, after: Stored | None) -> list[Change]:
    """Return the changes that write a schedule over what was seen, with its timer; None: that remove both."""
    before, now_at = seen.stored.wake_at, None if after is None else after.wake_at
    changes: list[Change] = [
        Delete(seen.key, seen.version) if after is None else Put(seen.key, STORED.encode_own(after), seen.version)
    ]
    if before is not None and before != now_at and seen.timer_version:
        changes.append(Delete(timer_key(scope, before, TIMER + seen.id), seen.timer_version))
    if now_at is not None and (before != now_at or not seen.timer_version):
        changes.append(Put(timer_key(scope, now_at, TIMER + seen.id), NO_DUE))
    return changes


async def commit(scope: Scope, changes: list[Change]) -> bool:
    """Commit; False: somebody else has changed the schedule."""
    answer: Commit | Conflict = await scope.commit(*changes)
    return not isinstance(answer, Conflict)


def digest_of(spec: ScheduleSpec) -> str:
    """Return a digest of what a schedule is, to notice that its declaration has changed."""
    return blake2b(SPECS.encode(spec), digest_size=16).hexdigest()
