"""What a lock by hand needs of the slot that it lies in."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from standfast.errors import NotASlotError
from standfast.keys import RecordKey
from standfast.locks.algebra.stored import LockRecord, read_lock_record
from standfast.locks.state.values import KEEP, PLAIN_STATE, Keep, Kept

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.clock import Instant
    from standfast.codec import JsonValue
    from standfast.stores.protocol import Record

A = TypeVar("A")


class Slot(Protocol):
    """Where a lock by hand keeps its record: anything that changes as a whole or not at all.

    :class:`AtomicState` is one; so is a state handle inside a workflow.
    """

    def transact(self, decide: Callable[[JsonValue, int, Instant], tuple[JsonValue | Keep, A]], /) -> Awaitable[A]:
        """Run ``decide`` and write what it returns, in one atomic change; return its answer.

        Args:
            decide: A pure function of the value, its version and the present by the slot's own clock. It returns the
                new value, or ``KEEP`` to write nothing, and an answer. It may run several times; only its last run
                counts. What it raises is raised to the caller, with nothing written.
        """
        ...


class HoldGuard(Struct, frozen=True):
    """The guard of a write that only the holder of a lock by hand may do, see :meth:`LockByHand.guard`."""

    key: RecordKey
    holder_id: str
    fence: int

    def holds(self, record: Record, at: Instant) -> bool:
        """Tell whether that very hold lasts at ``at``."""
        kept = PLAIN_STATE.decode(record.value)
        found = read_lock_record(kept.value if isinstance(kept, Kept) else None)
        return found.holds(self.holder_id, at, self.fence)


async def transact(slot: Slot, decide: Callable[[JsonValue, int, Instant], tuple[LockRecord | Keep, A]]) -> A:
    """Let the slot decide on records as the data that they are stored as; what stays the same is not written."""

    def on_data(value: JsonValue, version: int, at: Instant) -> tuple[JsonValue | Keep, A]:
        found, answer = decide(value, version, at)
        if found is KEEP or found == read_lock_record(value):
            return KEEP, answer
        data = msgspec.to_builtins(found)
        if not found.lapsed:  # the rare case alone makes a record longer
            del data["lapsed"]
        return cast("JsonValue", data), answer

    change = getattr(slot, "transact", None)
    if not callable(change):
        raise NotASlotError(f"a {type(slot).__name__}")
    answer = change(on_data)
    if not inspect.isawaitable(answer):
        raise NotASlotError(f"a {type(slot).__name__} whose transact cannot be awaited")
    return cast("A", await answer)
