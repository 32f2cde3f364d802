"""What the conformance tests stand on: their fixtures, and a few words to say things shortly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pytest

from standfast.clock import Instant, monotonic, seconds_between
from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, Decision, Put

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from standfast.stores import Change, Snapshot, Store
    from standfast.testing.simulation import VirtualClock

    OpenAnother: TypeAlias = Callable[[], Awaitable[Store]] | None

SOON = 5.0
"""How long a hint that is not lost may take at most, in seconds."""

TRIES = 20
"""How often a test tries what ought to succeed at once, or soon."""

MOMENT = 0.05
"""How long the expiries and windows of these tests are, in seconds, where the clock is a real one."""


PATIENCE = 2.0
"""How long most cases wait for a lease, in seconds. If the shortest is longer, one case of each suite waits for it."""


def shortest_lease(store: Store, wanted: float, patience: float) -> float:
    """Return a lease to wait for: as wanted, or the shortest of the store; skip the test if that takes too long."""
    lease = max(wanted, store.capabilities.shortest_lease)
    if wanted < lease > patience:
        pytest.skip(f"the shortest lease here is {lease:g} s, and tests wait for at most {patience:g} s: see patience")
    return lease


class MakeKey(Protocol):
    """Makes keys in the namespace of one test."""

    def __call__(self, *parts: str) -> RecordKey:
        """Return the key of these parts."""
        ...


class Ground:
    """The fixtures of the suite. A subclass provides ``store``, and the others if it can."""

    @pytest.fixture
    def open_another(self) -> OpenAnother:
        """Return a coroutine function that opens another handle on the data of ``store``; None: there is no way."""
        return None

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """Return the clock that ``store`` goes by, for tests to advance; None: it goes by a real one."""
        return None

    @pytest.fixture
    def patience(self) -> float:
        """Return how long a case may wait for a lease in real time, in seconds; see :data:`PATIENCE`."""
        return PATIENCE

    @pytest.fixture
    def key(self) -> MakeKey:
        """Return a function that makes keys in a namespace that no other test uses."""
        return functools.partial(RecordKey, f"conformance-{uuid.uuid4().hex}")


class SharedStoreGround:
    """The fixtures of a suite in which several processes use one store."""

    @pytest.fixture
    def open_another(self) -> Callable[[], Awaitable[Store]]:
        """Return a coroutine function that opens another handle on the same data."""
        pytest.fail("provide the fixture open_another: it opens another handle on the same data")

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """Return the clock that the store goes by, if it is one that follows the loop; None: it goes by a real one."""
        return None

    @pytest.fixture
    def patience(self) -> float:
        """Return how long a case may wait for a lease in real time, in seconds."""
        return PATIENCE


@contextlib.asynccontextmanager
async def another(open_another: OpenAnother) -> AsyncGenerator[Store]:
    """Open another handle on the same data, or skip the test."""
    if open_another is None:
        pytest.skip("this store has only one handle: no open_another fixture")
    store = await open_another()
    try:
        yield store
    finally:
        await store.aclose()


async def reach(store: Store, instant: Instant, clock: VirtualClock | None, key: RecordKey) -> None:
    """Return when the store's time is ``instant`` or later: the test's clock is advanced, a real one waited for."""
    at, deadline = (await store.read(key)).at, monotonic() + SOON
    deadline += max(0.0, seconds_between(at, instant)) + 2 * store.capabilities.clock_resolution
    while monotonic() < deadline:
        at = (await store.read(key)).at
        if at >= instant:
            return
        if clock is None:
            await asyncio.sleep(seconds_between(at, instant))
        else:
            clock.advance(seconds_between(at, instant))
    pytest.fail("time was let pass, but the store's time did not")


async def committed(store: Store, *changes: Change, **options: Any) -> Commit:
    """Commit, and insist that it happened."""
    verdict = await store.commit(*changes, **options)
    assert isinstance(verdict, Commit), verdict
    return verdict


async def refused(store: Store, *changes: Change, **options: Any) -> Conflict:
    """Commit, and insist that it conflicted."""
    verdict = await store.commit(*changes, **options)
    assert isinstance(verdict, Conflict), verdict
    return verdict


async def create(store: Store, key: RecordKey, value: bytes = b"", expires_at: Instant | None = None) -> int:
    """Create a record and return its version."""
    return (await committed(store, Put(key, value, expires_at=expires_at))).versions[key]


async def value_of(store: Store, key: RecordKey) -> bytes | None:
    """Return the value at a key, or None."""
    record = (await store.read(key)).get(key)
    return None if record is None else record.value


async def now(store: Store, key: RecordKey) -> Instant:
    """Return the store's time."""
    return (await store.read(key)).at


def increment(key: RecordKey) -> Callable[[Snapshot], Decision[int]]:
    """Return a decision that adds one to the number at ``key`` and answers the sum."""

    def decide(seen: Snapshot) -> Decision[int]:
        record = seen.get(key)
        number = 1 + (0 if record is None else int(record.value))
        return Decision(number, (Put(key, b"%d" % number, expected=seen.version(key)),))

    return decide


def append(key: RecordKey, text: bytes) -> Callable[[Snapshot], Decision[bytes]]:
    """Return a decision that appends to the text at ``key`` and answers the whole of it."""

    def decide(seen: Snapshot) -> Decision[bytes]:
        record = seen.get(key)
        whole = text if record is None else record.value + text
        return Decision(whole, (Put(key, whole, expected=seen.version(key)),))

    return decide
