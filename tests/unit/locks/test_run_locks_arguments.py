"""Run locks that are asked for nonsense, and the words of their error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    InvalidArgumentError,
    LeaseTooShortError,
    RunHeldError,
    StoreClosedError,
    UnsuitableStoreError,
)
from standfast.space import Space
from standfast.testing import NonAtomicStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.locks import RunLocks

OWNER = "owner-1"


@pytest.fixture
async def space() -> AsyncIterator[Space]:
    """A space on a store in memory."""
    async with sf.open("memory://") as space:
        yield space


@pytest.fixture
def locks(space: Space) -> RunLocks:
    """Its run locks."""
    return space.run_locks


async def test_a_store_without_atomic_commits_is_refused() -> None:
    """Where two racers could both win, nobody is told that they have won."""
    with pytest.raises(UnsuitableStoreError):
        Space(NonAtomicStore())


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), "0s", "soon", 0.01])
async def test_a_lease_that_cannot_be_kept_is_refused(locks: RunLocks, lease: Any) -> None:
    """Before anything is written."""
    with pytest.raises((InvalidArgumentError, LeaseTooShortError)):
        await locks.try_acquire("checkout", "1", lease=lease)

    assert await locks.get("checkout", "1") is None


@pytest.mark.parametrize("name", ["", None, 7, b"x"])
async def test_a_run_needs_names(locks: RunLocks, name: Any) -> None:
    """Workflow and run are text, and not empty."""
    for names in ((name, "1"), ("checkout", name)):
        with pytest.raises(InvalidArgumentError):
            await locks.try_acquire(*names)


@pytest.mark.parametrize("token", ["", "a\nb", "x" * 201, 7])
async def test_a_token_is_short_text(locks: RunLocks, token: Any) -> None:
    """An empty one would be everybody's."""
    with pytest.raises(InvalidArgumentError):
        await locks.try_acquire("checkout", "1", token=token)


async def test_a_closed_space_leases_nothing(space: Space, locks: RunLocks) -> None:
    """Every call says that it was closed."""
    await space.aclose()
    for call in (locks.try_acquire("a", "1"), locks.get("a", "1"), locks.release("a", "1", token=OWNER)):
        with pytest.raises(StoreClosedError):
            await call


def test_who_holds_a_run_is_said_in_words() -> None:
    """The error names run, workflow, holder and end."""
    error = RunHeldError("checkout", "1", "worker-7", 1_750_000_000_000_000)

    assert str(error) == "run '1' of 'checkout' is held by worker-7 until 2025-06-15 15:06:40+00:00"
