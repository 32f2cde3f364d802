"""The SQL of the PostgreSQL store: its schema, and the calls of its functions with their parameters and answers."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, cast, final

from standfast.clock import Instant
from standfast.errors import UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores.protocol import (
    ABSENT,
    Append,
    Check,
    Count,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Record,
    Snapshot,
    Stamped,
)
from standfast.stores.remote.choices import CreateOrAppend, EnterSlot, quick_choice, slot_choice
from standfast.stores.remote.server import (
    ChoiceIntent,
    ChoiceRefused,
    ChoicesMade,
    ChoiceWritten,
    Intent,
    Message,
    Row,
    WriteRefused,
    Written,
)
from standfast.stores.remote.subscriptions import LONGEST_MOVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import asyncpg

    from standfast.stores.protocol import AlternativeChange, Change

    Connection = asyncpg.Connection[asyncpg.Record]
    Fields = Iterable[Any]


# --- the schema: created and changed by numbered files, forward only, by one process at a time ---------------------

_FILE: Final = re.compile(r"(?P<number>[0-9]{4})_[a-z_]+\.sql", re.ASCII)

FIXED_PLANS: Final = (
    "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"
    " SET plan_cache_mode = force_generic_plan"
)
"""For functions on the way of every commit: by index, and planned once for a session."""


def migrations(schema: str) -> list[tuple[int, str]]:
    """Return the numbers and texts of all migrations, in their order."""
    folder = resources.files("standfast.stores.postgresql").joinpath("migrations")
    found = [(match["number"], each) for each in folder.iterdir() if (match := _FILE.fullmatch(each.name))]
    return [(int(number), render(each.read_text("utf-8"), schema)) for number, each in sorted(found)]


def render(text: str, schema: str) -> str:
    """Return a migration for one schema."""
    return text.replace("@schema@", f'"{schema}"').replace("@fixed_plans@", FIXED_PLANS)


async def ensure_schema(connection: Connection, schema: str, name: str, *, migrate: bool, timeout: float) -> None:
    """Bring the schema up to date, or check that it is; refuse one from the future."""
    steps = migrations(schema)
    newest = steps[-1][0]
    present = await _present(connection, schema, timeout)
    if present < newest and migrate:
        await _migrate(connection, schema, steps, timeout)
        present = await _present(connection, schema, timeout)
    if present < newest:
        raise UnsuitableStoreError(
            name, f"its schema is at migration {present}, {newest} is needed; let its owner open it with migrate=true"
        )
    if present > newest:
        raise UnsuitableStoreError(
            name, f"its schema is at migration {present}, this version of Standfast knows {newest}; use a newer one"
        )


async def _present(connection: Connection, schema: str, timeout: float) -> int:
    # Not to_regclass: it may have an outdated answer at hand if another process has just created the table.
    find = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migrations'"
    if not await connection.fetchval(find, schema, timeout=timeout):
        return 0
    last = await connection.fetchval(f'SELECT max(number) FROM "{schema}".migrations', timeout=timeout)  # noqa: S608 -- a checked name
    return last or 0


async def _migrate(connection: Connection, schema: str, steps: list[tuple[int, str]], timeout: float) -> None:
    """Apply what is missing in one transaction; a process that comes at the same time waits, and finds it done.

    The lock goes with the transaction: also a pooler cannot leave it behind. Whatever fails is undone by closing the
    connection.
    """
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", timeout=timeout)
    lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
    await connection.execute(lock, f"standfast migrations of {schema}", timeout=10 * timeout)
    present = await _present(connection, schema, timeout)
    if present == 0:
        await connection.execute(first(schema), timeout=timeout)
    for number, text in steps:
        if number > present:
            await connection.execute(text, timeout=10 * timeout)
            note = f'INSERT INTO "{schema}".migrations (number) VALUES ($1)'  # noqa: S608 -- a checked name
            await connection.execute(note, number, timeout=timeout)
    await connection.execute("COMMIT", timeout=timeout)


def first(schema: str) -> str:
    """Return what makes a schema that no migration was applied to yet."""
    return (
        f'CREATE SCHEMA IF NOT EXISTS "{schema}";'
        f' CREATE TABLE "{schema}".migrations (number int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())'
    )


# --- the calls of the store's SQL functions: their text, their parameters, and what their answers mean -------------
#
# Nothing here knows a driver: the same calls can be made over any connection to the database.

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_READ: Final = (
    f"SELECT t.at, r.key, r.value, r.version, r.expires_at FROM (SELECT {_NOW} AS at OFFSET 0) AS t"  # noqa: S608 -- of two constants
    " LEFT JOIN @.records AS r ON r.key = ANY ($1::bytea[]) AND (r.expires_at IS NULL OR r.expires_at > t.at)"
)
_SCAN: Final = (
    f"SELECT t.at, r.key, r.value, r.version, r.expires_at FROM (SELECT {_NOW} AS at OFFSET 0) AS t"  # noqa: S608 -- of two constants
    " LEFT JOIN LATERAL (SELECT * FROM @.records AS r WHERE r.key >= $1 AND r.key < $2"
    " AND (r.expires_at IS NULL OR r.expires_at > t.at) ORDER BY r.key LIMIT $3) AS r ON true ORDER BY r.key"
)
_WRITTEN: Final = 0

FEW: Final = 8
"""The most records that are written by a statement for each of them."""


@final
class PostgresStatements:
    """The texts of all statements, for one schema."""

    __slots__ = (
        "audience",
        "choose",
        "close_attempt",
        "counted",
        "create_or_append",
        "enter_slot",
        "forget",
        "hold",
        "leave_slot",
        "look_closely",
        "mark",
        "measure",
        "move_or_delete",
        "next_generation",
        "notify",
        "raise_versions",
        "read",
        "reserve",
        "scan",
        "scan_back",
        "store_here",
        "subscribe",
        "sweep",
        "touch",
        "write",
        "write_few",
    )

    def __init__(self, schema: str) -> None:
        at = functools.partial(_in, schema)
        self.write: Final = at(
            "SELECT * FROM @.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
        )
        self.write_few: Final = tuple([at(_write_few(count)) for count in range(FEW + 1)])
        self.choose: Final = at(
            "SELECT * FROM @.choose($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,"
            " $17, $18, $19)"
        )
        self.create_or_append: Final = at("SELECT * FROM @.create_or_append($1, $2, $3, $4, $5, $6, $7, $8)")
        self.move_or_delete: Final = at("SELECT * FROM @.move_or_delete($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)")
        self.enter_slot: Final = at(
            "SELECT * FROM @.enter_slot($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
        )
        self.leave_slot: Final = at(
            "SELECT * FROM @.leave_slot($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
        )
        self.hold: Final = at("SELECT * FROM @.hold($1, $2, $3, $4)")
        self.look_closely: Final = at("SELECT * FROM @.look_closely($1, $2, $3)")
        self.close_attempt: Final = at("SELECT * FROM @.close_attempt($1, $2)")
        self.counted: Final = at("SELECT handle, number FROM @.attempts WHERE handle = ANY ($1::text[])")
        self.touch: Final = at("UPDATE @.attempts SET touched_at = clock_timestamp() WHERE handle = $1")
        self.reserve: Final = at("SELECT nextval('@.versions'::regclass) FROM generate_series(1, $1::int)")
        self.forget: Final = at(
            "WITH gone AS (DELETE FROM @.topics WHERE handle = $1) DELETE FROM @.attempts WHERE handle = $1"
        )
        self.read: Final = at(_READ)
        self.scan: Final = at(_SCAN)
        self.scan_back: Final = at(_SCAN.replace("ORDER BY r.key", "ORDER BY r.key DESC"))
        self.sweep: Final = at("SELECT @.sweep($1)")
        self.measure: Final = at(
            "SELECT pg_total_relation_size(oid), reltuples::bigint FROM pg_class WHERE oid = '@.records'::regclass"
        )
        self.subscribe: Final = at("SELECT @.subscribe($1, $2, $3)")
        self.next_generation: Final = at("SELECT nextval('@.generations'::regclass)")
        self.audience: Final = at("SELECT * FROM @.audience()")
        self.notify: Final = (
            "SELECT pg_notify(m.channel, m.payload) FROM unnest($1::text[], $2::text[]) AS m (channel, payload)"
        )
        # What handles have written is counted in the same transactions; a sequence would run ahead of them.
        self.mark: Final = at("SELECT bit_xor(hashtextextended(handle || number, 0)) FROM @.attempts")
        self.raise_versions: Final = at("SELECT @.raise_versions()")
        self.store_here: Final = at("SELECT @.store_here()")


def _in(schema: str, statement: str) -> str:
    return statement.replace("@", f'"{schema}"')


def _write_few(count: int) -> str:
    """Return the call of ``write_few`` for a number of keys: only messages are parameters that are arrays.

    The driver asks an abstract class about each element of an array, and the server reads it element by element.
    """
    columns = [f"ARRAY[{', '.join([f'${6 + 4 * place + n}' for place in range(count)])}]" for n in range(4)]
    return (
        f"SELECT * FROM @.write_few($1, $2, $3, $4, $5, {columns[0]}::bytea[], {columns[1]}::bigint[],"  # noqa: S608 -- of numbers
        f" {columns[2]}::int[], {columns[3]}::bytea[])"
    )


# --- writing -------------------------------------------------------------------------------------------------------


def write_parameters(intent: Intent, schema: str) -> tuple[Any, ...]:
    """Return the parameters of ``write`` for an intent."""
    guards, puts, messages = intent.guards, intent.puts, intent.messages
    keys, expected = list(guards), list(guards.values())
    absent = expected.count(ABSENT)
    rows: Sequence[Row | None] = puts
    locks, draws, made = None, [row.draw + 1 for row in puts], absent
    if len(puts) != len(keys):  # else all of them are put, in the same order
        locks, rows, draws = _beside_others(keys, intent)
        made = sum([guards[row.key] == ABSENT for row in puts]) if absent else 0
    ends = [None if row is None else row.expires_at for row in rows]
    return (
        intent.handle,
        intent.number,
        keys,
        expected,
        len(expected) - absent,
        locks,
        [None if row is None else row.value for row in rows],
        draws,
        None if ends.count(None) == len(ends) else ends,
        made,
        len(puts) - made,
        len(intent.deletes),
        intent.draws,
        intent.exact or None,
        intent.after,
        intent.before,
        [channel(schema, message.topic) for message in messages] or None,
        [payload(message) for message in messages] or None,
    )


def few_call(intent: Intent, calls: PostgresStatements, schema: str) -> tuple[str, tuple[Any, ...]] | None:
    """Return the call that writes an intent of a few records, and its parameters; None: it is none, or not as plain."""
    guards, puts, messages = intent.guards, intent.puts, intent.messages
    if len(guards) > FEW or intent.draws != 1 or intent.exact or not (intent.after is intent.before is None):
        return None
    values: dict[RecordKey, bytes] = {}
    for row in puts:
        if row.expires_at is not None:
            return None
        values[row.key] = row.value
    replaces = bool(intent.deletes)
    parameters: list[Any] = [intent.handle, intent.number, None, None, replaces]
    if messages:
        parameters[2:4] = [channel(schema, each.topic) for each in messages], [payload(each) for each in messages]
    for key, expected in guards.items():
        value = values.get(key)
        if value is not None:
            replaces = replaces or expected != ABSENT
            parameters += (key, expected, 1, value)
        elif expected == ABSENT:
            return None
        else:
            parameters += (key, expected, -1 if key in intent.deletes else 0, None)
    parameters[4] = replaces
    return calls.write_few[len(guards)], tuple(parameters)


def _beside_others(keys: Sequence[RecordKey], intent: Intent) -> tuple[list[int] | None, list[Row | None], list[int]]:
    """Return how to lock the keys, what to put at each, and what becomes of each, where some are not put."""
    puts, gone = {row.key: row for row in intent.puts}, frozenset(intent.deletes)
    rows = [puts.get(key) for key in keys]
    draws = [row.draw + 1 if row is not None else -1 if key in gone else 0 for key, row in zip(keys, rows, strict=True)]
    return lock_runs([draw != 0 for draw in draws]), rows, draws


def lock_runs(writes: Sequence[bool]) -> list[int] | None:
    """Say how to lock keys in their order: a number to write (positive), a number to compare (negative), and so on.

    None: all of them are to be written.
    """
    if all(writes):
        return None
    lengths = [(is_written, len(list(run))) for is_written, run in itertools.groupby(writes)]
    return [length if is_written else -length for is_written, length in lengths]


def written(answer: Fields, intent: Intent) -> Written | WriteRefused:
    """Return what ``write`` answered, or ``write_few`` if that gave a status."""
    status, at, drawn, generation, *lost = answer
    if status == _WRITTEN:
        return Written(Instant(at), tuple(drawn), generation)
    return WriteRefused(Instant(at), lost_records(list(intent.guards), lost))


def lost_records(keys: Sequence[RecordKey], lost: Fields) -> dict[RecordKey, Record | None]:
    """Return the live records of the keys whose guards did not hold."""
    places, values, versions, ends = lost
    current: dict[RecordKey, Record | None] = {}
    for place, value, version, end in zip(places or (), values or (), versions or (), ends or (), strict=True):
        key = keys[place - 1]
        current[key] = None if version is None else Record(key, value, version, None if end is None else Instant(end))
    return current


# --- alternatives --------------------------------------------------------------------------------------------------


def choice_parameters(intent: ChoiceIntent, schema: str) -> tuple[Any, ...]:
    """Return the parameters of ``choose``."""
    alternatives = [each for choice in intent.choices for each in choice]
    rows = [_fields(change) for each in alternatives for change in sorted(each.changes, key=_place)]
    kinds, keys, expected, puts, rests, ends = zip(*rows, strict=True)
    sent = [(n, message) for n, messages in enumerate(intent.messages, 1) for message in messages]
    afters, befores = [each.after for each in alternatives], [each.before for each in alternatives]
    return (
        intent.handle,
        intent.number,
        intent.origin.encode(),
        LONGEST_MOVED,
        *(_locks(kinds, keys) if len(intent.choices) > 1 else (None, None)),
        [len(choice) for choice in intent.choices],
        [len(each.changes) for each in alternatives],
        "".join(kinds),
        keys,
        expected,
        puts,
        rests,
        ends if ends.count(None) < len(ends) else None,
        afters if any(afters) else None,
        befores if any(befores) else None,
        [n for n, _ in sent] or None,
        [channel(schema, message.topic) for _, message in sent] or None,
        [payload(message) for _, message in sent] or None,
    )


def _fields(  # noqa: PLR0911 -- a line for each kind
    change: AlternativeChange,
) -> tuple[str, bytes, int, bytes, bytes, int | None]:
    """Return what ``choose`` takes of a change."""
    # By exact types: isinstance asks the metaclass of a struct, which takes several times as long.
    if type(change) is Put or type(change) is Stamped:
        kind = "p" if type(change) is Put else "s"
        return kind, change.key, change.expected, change.value, b"", change.expires_at
    if type(change) is Delete or type(change) is Check:
        return "d" if type(change) is Delete else "c", change.key, change.expected, b"", b"", None
    if type(change) is MoveFirst:
        return "m", change.to, change.expected, change.inboxes, change.prefix, None
    if type(change) is Append:
        return "A" if change.stamped else "a", change.prefix, 1, change.value, change.suffix, None
    if type(change) is Present:
        return "r", change.key, 1, b"", b"", None
    if type(change) is Count:
        return "n", change.prefix, change.least, b"", b"", change.most
    return "e", cast("Empty", change).prefix, 1, b"", b"", None


def _locks(kinds: Sequence[str], keys: Sequence[bytes]) -> tuple[list[bytes], list[int] | None]:
    """Return all keys of several choices in order, and how to lock them before any is looked at."""
    written: dict[bytes, bool] = {}
    for kind, key in zip(kinds, keys, strict=True):
        if kind not in _BELOW:
            written[key] = written.get(key, False) or kind not in _COMPARED
    locked = sorted(written)
    return locked, lock_runs([written[key] for key in locked])


_BELOW: Final = frozenset("eaAn")
_COMPARED: Final = frozenset("rc")


def _place(change: AlternativeChange) -> bytes:
    """Return by what changes are sorted within an alternative: so all are locked in one order."""
    if type(change) is Empty or type(change) is Append or type(change) is Count:
        return change.prefix
    return change.to if type(change) is MoveFirst else cast("Change | Stamped | Present", change).key


def choices_made(rows: Sequence[Any], intent: ChoiceIntent) -> ChoicesMade:
    """Return what ``choose`` answered."""
    answers: list[ChoiceWritten | ChoiceRefused] = []
    before = 0
    for choice, row in zip(intent.choices, rows, strict=True):
        status, at, version, _, chosen, asked, keys, *_ = row
        if status == _WRITTEN and not asked and not keys:  # nearly always: it shows no record
            answers.append(ChoiceWritten(Instant(at), chosen, version or 0, {}, None))
        else:
            changes = [change for each in choice for change in sorted(each.changes, key=_place)]
            answers.append(_choice_answer(row, changes, before))
        for each in choice:
            before += len(each.changes)
    return ChoicesMade(tuple(answers), rows[0][3])


def _choice_answer(
    row: Sequence[Any], changes: Sequence[AlternativeChange], before: int
) -> ChoiceWritten | ChoiceRefused:
    status, at, version, _, chosen, asked, keys, values, versions, ends = row
    at = Instant(at)
    records: dict[RecordKey, Record] = {}
    if status == _WRITTEN:
        for n, place in enumerate(asked or ()):
            key = RecordKey.from_encoded(_place(changes[place - before - 1]))
            records[key] = Record(key, values[n], versions[n], None if ends[n] is None else Instant(ends[n]))
        moved = Record(RecordKey.from_encoded(keys[0]), values[-1], versions[-1]) if keys else None
        return ChoiceWritten(at, chosen, version or 0, records, moved)
    firsts: dict[RecordKey, Record] = {}
    for n, place in enumerate(asked or ()):
        key = RecordKey.from_encoded(keys[n])
        record = Record(key, values[n], versions[n], None if ends[n] is None else Instant(ends[n]))
        change: AlternativeChange = changes[abs(int(place)) - before - 1]
        if place < 0 and isinstance(change, (Empty, MoveFirst)):
            firsts[change.prefix] = record
        else:
            records[key] = record
    return ChoiceRefused(at, records, firsts)


# --- two choices that have functions of their own ------------------------------------------------------------------


def quick_call(intent: ChoiceIntent, calls: PostgresStatements) -> tuple[str, tuple[Any, ...]] | None:
    """Return the call that makes a choice without ``choose``, and its parameters; None: there is none for it."""
    choice = quick_choice(intent)
    if choice is None:
        return _slot_call(intent, calls)
    if isinstance(choice, CreateOrAppend):
        return calls.create_or_append, (intent.handle, intent.number, *choice)
    return calls.move_or_delete, (intent.handle, intent.number, *choice, intent.origin.encode(), LONGEST_MOVED)


def _slot_call(intent: ChoiceIntent, calls: PostgresStatements) -> tuple[str, tuple[Any, ...]] | None:
    choice = slot_choice(intent)
    if choice is None:
        return None
    if isinstance(choice, EnterSlot):
        return calls.enter_slot, (intent.handle, intent.number, *choice)
    return calls.leave_slot, (intent.handle, intent.number, *choice, intent.origin.encode(), LONGEST_MOVED)


def quick_choice_made(row: Fields, intent: ChoiceIntent) -> ChoicesMade | None:
    """Return what the function of a choice answered; None: it has done nothing, and ``choose`` is to be called."""
    generation, at, version, index, *found = row
    present: dict[RecordKey, Record] = {}
    moved = None
    if index is None:
        return None
    if found[-1] is not None:  # the version of the record that it shows
        guard = intent.choices[0][int(index)].changes[0]
        if type(guard) is Present:
            present = {guard.key: Record(guard.key, *found)}
        else:
            moved = Record(RecordKey.from_encoded(found[0]), *found[1:])
    return ChoicesMade((ChoiceWritten(Instant(at), index, version, present, moved),), generation)


# --- reading -------------------------------------------------------------------------------------------------------


def records(rows: Iterable[Fields]) -> tuple[Instant, dict[RecordKey, Record]]:
    """Return the time and the records of ``read`` or ``scan``."""
    at, found = 0, dict[RecordKey, Record]()
    for at, encoded, value, version, ends in rows:  # noqa: B007 -- the time is the same in all of them
        if encoded is not None:
            key = RecordKey.from_encoded(encoded)
            found[key] = Record(key, value, version, None if ends is None else Instant(ends))
    return Instant(at), found


def page(rows: Iterable[Fields], limit: int, *, reverse: bool) -> Snapshot:
    """Return a page of a scan that was asked for one record more than fits."""
    at, found = records(rows)
    return Snapshot.page(at, list(found.values()), limit, reverse=reverse)


# --- notifications -------------------------------------------------------------------------------------------------


def channel(schema: str, topic: bytes) -> str:
    """Return the name of the channel of a topic: short enough for PostgreSQL, whatever the topic is."""
    digest = hashlib.sha256(b'"%b"\x00%b' % (schema.encode(), topic))  # the database computes it, too
    return f"sf_{digest.hexdigest()[:40]}"


def channels(schema: str, topics: Iterable[bytes]) -> Mapping[str, bytes]:
    """Return the channels of topics."""
    return {channel(schema, topic): topic for topic in topics}


def payload(message: Message) -> str:
    """Return the data of a message as text, which is what a channel takes."""
    return base64.b64encode(message.data).decode()


def data_of(text: str) -> bytes:
    """Return the data of a message; empty for what no handle sent."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
