"""One state in one record: how it is read, decided on and committed, and who is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

from msgspec import Struct

from standfast.errors import DecodeError, EncodeError, StaleWriteError
from standfast.locks.state.events import Listeners, StateChanged
from standfast.locks.state.values import GONE, KEEP, PLAIN_STATE, Kept, StateValue, as_guard, state_codec
from standfast.stores.group import verdict_of
from standfast.stores.protocol import ABSENT, Change, Check, Decided, Decision, Put

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.codec import Codec, JsonValue
    from standfast.keys import RecordKey
    from standfast.locks.state.values import Gone, Guard, Keep
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot, Verdict

T = TypeVar("T")
A = TypeVar("A")


@final
class StateRecord(Generic[T]):
    """The record of a state, typed. What was never written reads as ``initial``, what was deleted as None."""

    __slots__ = ("_codec", "_initial", "_scope", "key", "listeners")

    def __init__(self, scope: Scope, key: RecordKey, of: Any, initial: T | None) -> None:  # noqa: ANN401 -- any type that msgspec reads
        self.key: Final = key
        self.listeners: Final = Listeners()
        self._scope: Final = scope
        self._codec: Final[Codec[Kept[T] | Gone]] = state_codec(_type_of(initial) if of is Any else of)
        # Kept as bytes: whoever reads it gets a copy.
        self._initial: Final = GONE if initial is None else self.encode(initial)

    async def read(self) -> StateValue[T]:
        """Return the value and its version."""
        seen = await self._scope.read(self.key)
        return StateValue(self.value(seen.get(self.key)), seen.version(self.key))

    def value(self, record: Record | None) -> T | None:
        """Return the value in a record."""
        return self._unpacked(self._bytes(record))

    def plain_value(self, record: Record | None) -> JsonValue:
        """Return the value in a record as JSON-shaped data, whether or not it is of the declared type."""
        kept = PLAIN_STATE.decode(self._bytes(record))
        return cast("JsonValue", kept.value) if isinstance(kept, Kept) else None

    def encode(self, value: T) -> bytes:
        """Return the bytes of a record with that value; refuse what cannot be stored."""
        return self._codec.encode(Kept(value))

    def encode_plain(self, value: JsonValue | Keep) -> bytes | None:
        """Return the bytes of a record with JSON-shaped data of the declared type; None for ``KEEP``."""
        if value is KEEP:
            return None
        data = PLAIN_STATE.encode(Kept(value))
        try:
            self._codec.decode(data)
        except DecodeError as error:
            raise EncodeError(error.problem) from None
        return data

    async def commit(
        self,
        make: Callable[[Record | None, Instant], tuple[bytes | None, A]],
        expected_version: int | None = None,
        guard: Guard | Check | None = None,
    ) -> tuple[A, int]:
        """Write the bytes that ``make`` returns, if any; return its answer and the new version."""
        key, wanted = self.key, as_guard(guard, self.key)

        def decide(seen: Snapshot) -> Decision[tuple[A, bytes | None, bytes | None]]:
            record, version = seen.get(key), seen.version(key)
            self.require_version(version, expected_version)
            checks = self._checks(wanted, seen)
            data, answer = make(record, seen.at)
            if data is None:
                return Decision((answer, None, None))
            return Decision((answer, self._bytes(record), data), (*checks, Put(key, data, version)))

        try:
            decided = await self._scope.update([key] if wanted is None else [key, wanted.key], decide)
        except asyncio.CancelledError as cancelled:
            self._tell(verdict_of(cancelled))
            raise
        self._tell(decided)
        return decided.answer[0], decided.versions.get(key, ABSENT)

    async def replace(self, version: int, data: bytes, guard: Guard | Check | None) -> bool:
        """Write ``data`` if the state still has that version; tell whether it did."""

        def make(record: Record | None, _at: Instant) -> tuple[bytes | None, bool]:
            return (data, True) if version_of(record) == version else (None, False)

        return (await self.commit(make, None, guard))[0]

    def require_version(self, version: int, expected: int | None) -> None:
        """Refuse a write that depends on another version."""
        if expected is not None and version != expected:
            raise StaleWriteError(str(self.key), str(self.key), f"is at version {version}, not {expected}")

    def _checks(self, guard: Guard | None, seen: Snapshot) -> tuple[Change, ...]:
        if guard is None:
            return ()
        record = seen.get(guard.key)
        if record is None or not guard.holds(record, seen.at):
            problem = "is not as the guard wants it" if record else "does not exist"
            raise StaleWriteError(str(self.key), str(guard.key), problem)
        return (Check(guard.key, record.version),)

    def _tell(self, decided: Decided[Any] | Verdict | Exception | None) -> None:
        if not self.listeners or not isinstance(decided, Decided) or self.key not in decided.versions:
            return
        _, before, after = cast("tuple[object, bytes, bytes]", decided.answer)
        self.listeners.tell(StateChanged(self._told(after), self._told(before), decided.versions[self.key]))

    def _told(self, data: bytes) -> T | None:
        try:
            return self._unpacked(data)
        except DecodeError:  # a write over damaged bytes is how they are repaired
            return None

    def _unpacked(self, data: bytes) -> T | None:
        kept = self._codec.decode(data)
        return kept.value if isinstance(kept, Kept) else None

    def _bytes(self, record: Record | None) -> bytes:
        return self._initial if record is None else record.value


def _type_of(initial: object) -> Any:  # noqa: ANN401 -- any type that msgspec reads
    return type(initial) if isinstance(initial, Struct) else Any


def version_of(record: Record | None) -> int:
    """Return the version of a record, or of none."""
    return ABSENT if record is None else record.version
