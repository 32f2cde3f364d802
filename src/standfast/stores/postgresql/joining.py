"""A user's own transaction takes records of the store along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from standfast.clock import Instant
from standfast.errors import UnsuitableConnectionError
from standfast.keys import RecordKey
from standfast.stores.backend import CommitRider
from standfast.stores.guests import code_of
from standfast.stores.joining import Question
from standfast.stores.moving.protocol import moved
from standfast.stores.postgresql.calls import channel, lock_runs, lost_records, payload
from standfast.stores.postgresql.working import intent_of
from standfast.stores.protocol import ABSENT, Commit, Conflict, Record, Snapshot
from standfast.stores.remote.server import Audience
from standfast.stores.remote.topics import Addressing
from standfast.stores.rules import check_commit, check_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.stores.joining import Talk
    from standfast.stores.protocol import Capabilities, Change
    from standfast.stores.remote.server import Intent, Message

_WRITTEN: Final = 0
_APART: Final = 2

_NO_SUCH_STORE: Final = frozenset({"3F000", "42883", "42P01"})
_NO_PRIVILEGE: Final = "42501"
_FROZEN: Final = "SF004"


@final
class PostgresJoining:
    """The store in one schema, over connections of the user's.

    Args:
        schema: The schema.
        store: Which store that is, as the store's own connection sees it.
        name: The store as shown to people.
        limits: What a commit may have.
    """

    def __init__(self, schema: str, store: str, name: str, limits: Capabilities) -> None:
        self._schema, self._store, self._name, self._limits = schema, store, name, limits
        self._begin: Final = Question(f'SELECT "{schema}".join_begin()')
        self._write: Final = f'SELECT "{schema}".join_write(:asked)'
        self._read: Final = f'SELECT "{schema}".join_read(:asked)'

    def write(
        self, changes: Sequence[Change], *, before: Instant | None = None, idle: float | None = None
    ) -> Talk[Commit | Conflict]:
        """Do all of ``changes`` or none, as part of the transaction under way."""
        check_commit(changes, (), self._limits)
        intent = intent_of(CommitRider(tuple(changes), None, before), "", 0)
        begun = yield from self._opening()
        asked = _asked(intent, begun["transaction"], idle, self._messages(intent, begun["topics"]), self._schema)
        try:
            told = _decode((yield Question(self._write, asked)))
        except Exception as problem:
            if code_of(problem) == _FROZEN:
                raise moved(self._name) from problem
            raise
        if told["status"] == _APART:
            raise UnsuitableConnectionError(self._name, "no transaction is open on it: begin one, and commit it")
        at = Instant(told["at"])
        if told["status"] == _WRITTEN:
            version: int = told["drawn"][0]
            return Commit(at, dict.fromkeys([row.key for row in intent.puts], version))
        values = [None if each is None else bytes.fromhex(each) for each in told["values"] or ()]
        lost = (told["lost"], values, told["versions"], told["ends"])
        return Conflict(at, lost_records(list(intent.guards), lost))

    def _opening(self) -> Talk[dict[str, Any]]:
        """Find out what is at the other end."""
        try:
            begun: dict[str, Any] = _decode((yield self._begin))
        except Exception as problem:
            code = code_of(problem)
            if code in _NO_SUCH_STORE:
                raise self._elsewhere() from problem
            if code == _NO_PRIVILEGE:
                advice = f'its user may not use the store; let the owner call SELECT "{self._schema}".grant_to(user)'
                raise UnsuitableConnectionError(self._name, advice) from problem
            raise
        if begun["store"] != self._store:
            raise self._elsewhere()
        return begun

    def _elsewhere(self) -> UnsuitableConnectionError:
        return UnsuitableConnectionError(
            self._name,
            f"it sees another database than the store's, or another schema {self._schema!r}; connect it there",
        )

    @staticmethod
    def _messages(intent: Intent, topics: Iterable[str]) -> tuple[Message, ...]:
        """Return the hints that are sent when the user commits: to everyone, those on this store's handle included."""
        addressing = Addressing()
        addressing.learn(Audience(0, frozenset(map(bytes.fromhex, topics))))
        return addressing.messages([*(row.key for row in intent.puts), *intent.deletes], (), "")

    def read(self, keys: Sequence[RecordKey]) -> Talk[Snapshot]:
        """Read records as the transaction under way sees them."""
        check_read(keys, self._limits)
        told = _decode((yield Question(self._read, _encode([bytes(key).hex() for key in keys]))))
        return Snapshot(Instant(told["at"]), dict(map(_record, told["records"])))


def _record(row: Sequence[Any]) -> tuple[RecordKey, Record]:
    digits, value, version, ends = row
    key = RecordKey.from_encoded(bytes.fromhex(digits))
    return key, Record(key, bytes.fromhex(value), version, None if ends is None else Instant(ends))


def _asked(intent: Intent, transaction: str, idle: float | None, messages: Sequence[Message], schema: str) -> str:
    """Return the parameter of ``join_write``; what is left out is NULL there."""
    guards, gone = intent.guards, frozenset(intent.deletes)
    puts = {row.key: row for row in intent.puts}
    rows = [puts.get(key) for key in guards]
    made = sum(guards[key] == ABSENT for key in puts)
    asked = {
        "transaction": transaction,
        "idle": None if idle is None else int(idle * 1000),
        "keys": [bytes(key).hex() for key in guards],
        "expected": list(guards.values()),
        "there": sum(version != ABSENT for version in guards.values()),
        "locks": lock_runs([key in puts or key in gone for key in guards]),
        "puts": [None if row is None else row.value.hex() for row in rows],
        "draws": [1 if row is not None else -1 if key in gone else 0 for key, row in zip(guards, rows, strict=True)],
        "ends": [None if row is None else row.expires_at for row in rows],
        "made": made,
        "changed": len(puts) - made,
        "gone": len(gone),
        "before": intent.before,
        "channels": [channel(schema, message.topic) for message in messages] or None,
        "payloads": [payload(message) for message in messages] or None,
    }
    return _encode({name: value for name, value in asked.items() if value is not None})


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _decode(text: str) -> Any:  # noqa: ANN401 -- as the function in the database has made it
    return msgspec.json.decode(text)
