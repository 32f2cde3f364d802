"""How a state lies in its record, and what a write to it may depend on.

A record holds ``{"type":"value","value":...}``, or ``{"type":"gone"}`` once the state was deleted: the record stays, so
its version goes on, and a writer that has seen the state before cannot bring it back.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from standfast.codec import Codec
from standfast.errors import InvalidStateArgumentError
from standfast.keys import RecordKey
from standfast.stores.protocol import ABSENT, Check

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.stores.protocol import Record

T = TypeVar("T")


class Kept(Struct, Generic[T], frozen=True, tag="value"):
    """A state that has a value."""

    value: T


class Gone(Struct, frozen=True, tag="gone"):
    """A state that was deleted."""


PLAIN_STATE: Final[Codec[Kept[Any] | Gone]] = Codec(Kept[Any] | Gone, what="the state")
"""Reads any state as JSON-shaped data, whatever type it is declared with."""

GONE: Final = PLAIN_STATE.encode(Gone())


def state_codec(of: Any) -> Codec[Kept[Any] | Gone]:  # noqa: ANN401 -- msgspec takes any type, also those that are no class
    """Return the codec of states with values of one type."""
    return PLAIN_STATE if of is Any else Codec(Kept[of] | Gone, what="the state")


class Keep(Enum):
    """The answer of a decision that leaves a slot as it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
"""Returned in place of a value: write nothing."""


class StateValue(Struct, Generic[T], frozen=True):
    """What a state holds, and its version: 0 while it was never written."""

    value: T | None
    version: int


class Guard(Protocol):
    """What a write depends on: a record that must be as it should, at the very instant of the write.

    A :class:`~standfast.stores.Check` says which version the record must have. ``DurableMutex.guard`` makes one that
    asks whether a hold still lasts.
    """

    @property
    def key(self) -> RecordKey:
        """Where the record lies, in the space of the state."""
        ...

    def holds(self, record: Record, at: Instant) -> bool:
        """Tell whether the write may happen. Pure; it may be asked several times."""
        ...


class AtVersion(Struct, frozen=True):
    """The guard that a ``Check`` stands for."""

    key: RecordKey
    expected: int

    def holds(self, record: Record, at: Instant) -> bool:  # noqa: ARG002 -- a version does not depend on time
        """Tell whether the record has that version."""
        return record.version == self.expected


def as_guard(guard: Guard | Check | None, state: RecordKey) -> Guard | None:
    """Return what was given as a guard; refuse what guards nothing."""
    if isinstance(guard, Check):
        if guard.expected == ABSENT:
            raise InvalidStateArgumentError("guard", f"the absence of {guard.key}", "put a marker and check that")
        guard = AtVersion(guard.key, guard.expected)
    if guard is not None and not hasattr(guard, "holds"):
        raise InvalidStateArgumentError("guard", f"a {type(guard).__name__}", "give a Check, or mutex.guard(...)")
    if guard is not None and guard.key == state:
        raise InvalidStateArgumentError("guard", "the state itself", "use expected_version")
    return guard


def checked_count(value: int, what: str) -> int:
    """Return a number of things; refuse what cannot be one."""
    if type(value) is not int or value < 1:
        raise InvalidStateArgumentError(what, ascii(value)[:40], "it must be a whole number, at least 1")
    return value
