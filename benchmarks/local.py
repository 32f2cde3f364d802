"""Exclusion in one process: what a hold costs, how fast a key is handed over, and what an idle key leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections import deque
from time import process_time, process_time_ns
from typing import TYPE_CHECKING, Any, Protocol

import standfast as sf
from benchmarks.harness import Row, Subject, at_least, at_most, finish, peer_environment, peer_process, plainly_at_most
from standfast.exclusion import Exclusion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

NOTES = """\
The limit is the shortest keyed lock that serves in order: a dict of deques of futures, which loses the key when a
waiter is cancelled and knows neither owners, modes, order, timeouts nor who holds what. Standfast does all of that in
the time shown. The key is made before the clock starts; what making one costs is a row of its own."""

PLAIN = sf.KeyFamily("bench-plain")
OTHER = sf.KeyFamily("bench-other", after=(PLAIN,))
MODES = sf.KeyFamily("bench-modes", modes=("pull", "observe"), alone=("exclusive",))
TIMES = 50_000
WAITERS = 10_000
IDLE_KEYS = 20_000


class Bare:
    """The limit: a keyed lock in order of arrival, and nothing else. A cancelled waiter loses the key for ever."""

    def __init__(self) -> None:
        self.lines: dict[bytes, deque[asyncio.Future[None]]] = {}

    def hold(self, key: bytes) -> BareHold:
        """Return the context manager that holds ``key``."""
        return BareHold(self.lines, key)


class BareHold:
    """One hold of the limit."""

    __slots__ = ("key", "lines")

    def __init__(self, lines: dict[bytes, deque[asyncio.Future[None]]], key: bytes) -> None:
        self.lines, self.key = lines, key

    async def __aenter__(self) -> None:
        line = self.lines.get(self.key)
        if line is None:
            self.lines[self.key] = deque()
        else:
            future = asyncio.get_running_loop().create_future()
            line.append(future)
            await future

    async def __aexit__(self, *_: object) -> None:
        line = self.lines[self.key]
        if line:
            line.popleft().set_result(None)
        else:
            del self.lines[self.key]


class LockPerKey:
    """What is usually written: a dict of locks that only grows."""

    def __init__(self) -> None:
        self.locks: dict[bytes, asyncio.Lock] = {}

    def hold(self, key: bytes) -> asyncio.Lock:
        """Return the lock of ``key``."""
        lock = self.locks.get(key)
        if lock is None:
            lock = self.locks[key] = asyncio.Lock()
        return lock


class Keyed(Protocol):
    """Anything that holds keys."""

    def hold(self, key: Any, /) -> AbstractAsyncContextManager[Any]:  # noqa: ANN401 -- each contestant has its own keys
        """Return a context manager that holds ``key``."""
        ...


# --- one task, nobody else ----------------------------------------------------------------------------------------


async def keyed_pairs(keyed: Keyed, key: object) -> float:
    """Return the nanoseconds of one uncontended acquire and release."""
    started = process_time_ns()
    for _ in range(TIMES):
        async with keyed.hold(key):
            pass
    return (process_time_ns() - started) / TIMES


async def lock_pairs() -> float:
    """Measure the lock of the standard library, which has no keys."""
    lock = asyncio.Lock()
    started = process_time_ns()
    for _ in range(TIMES):
        async with lock:
            pass
    return (process_time_ns() - started) / TIMES


async def mode_pairs() -> float:
    """Measure holding in a mode."""
    exclusion, key = Exclusion(), MODES("graph")
    started = process_time_ns()
    for _ in range(TIMES):
        async with exclusion.hold(key, mode="pull"):
            pass
    return (process_time_ns() - started) / TIMES


async def nested_pairs(keyed: Keyed, outer: object, inner: object) -> float:
    """Measure holding a second key while one is held."""
    async with keyed.hold(outer):
        return await keyed_pairs(keyed, inner)


async def making_keys() -> float:
    """Measure making a key of one part."""
    started = process_time_ns()
    for _ in range(TIMES):
        PLAIN("srv/repo")
    return (process_time_ns() - started) / TIMES


# --- many tasks ---------------------------------------------------------------------------------------------------


async def hand_overs(hold: Callable[[], AbstractAsyncContextManager[Any]]) -> float:
    """Return the hand-overs a second in a line of 10,000 tasks that all wait for one key."""
    start = asyncio.Event()

    async def waiter() -> None:
        async with hold():
            pass

    async def holder() -> None:
        async with hold():
            await start.wait()

    first = asyncio.create_task(holder())
    await asyncio.sleep(0)
    waiters = [asyncio.create_task(waiter()) for _ in range(WAITERS)]
    await asyncio.sleep(0)
    started = process_time()
    start.set()
    await asyncio.gather(first, *waiters)
    return WAITERS / (process_time() - started)


async def idle_bytes(keyed: Keyed, key_of: Callable[[str], object]) -> float:
    """Return the bytes that are left behind for each key that was held once."""

    async def use(numbers: range) -> None:
        for number in numbers:
            async with keyed.hold(key_of(f"key-{number}")):
                pass

    tracemalloc.start()
    await use(range(IDLE_KEYS // 10))  # whatever is kept once and for all
    before = tracemalloc.get_traced_memory()[0]
    before = tracemalloc.get_traced_memory()[0]  # and the number itself
    await use(range(IDLE_KEYS // 10, IDLE_KEYS))
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return max(0, left) / (IDLE_KEYS - IDLE_KEYS // 10)


def run(work: Callable[[], Awaitable[float]]) -> Callable[[], float]:
    """Return a measure that does ``work`` on a fresh loop."""

    async def measured() -> float:
        return await work()

    return lambda: asyncio.run(measured())


def main() -> None:
    """Measure all of it."""
    subject = Subject("local", "In one process", notes=NOTES)
    plain, other, text = PLAIN("srv/repo"), OTHER("srv/repo"), PLAIN("srv/repo").encoded
    lock, lock_per_key = run(lock_pairs), run(lambda: keyed_pairs(LockPerKey(), text))
    bare = run(lambda: keyed_pairs(Bare(), text))
    with contextlib.ExitStack() as stack:
        python = peer_environment("local", "anyio", "aiorwlock")
        foreign = stack.enter_context(peer_process(python, "benchmarks.local_peers"))
        reader = {name: foreign[name] for name in foreign if "aiorwlock" in name}
        others = {name: foreign[name] for name in foreign if name not in reader}
        locks = {"asyncio.Lock": lock, "dict of asyncio.Lock": lock_per_key, **others}
        ours = run(lambda: keyed_pairs(Exclusion(), plain))
        subject.add(Row("hold a free key", "ns", standfast=ours, limit=bare, peers=locks, bar=at_most(1.3)))
        subject.add(
            Row(
                "hold a free key in a mode", "ns", standfast=run(mode_pairs), limit=bare, peers=reader, bar=at_most(1.8)
            )
        )
        subject.add(
            Row(
                "hold a second key",
                "ns",
                standfast=run(lambda: nested_pairs(Exclusion(), plain, other)),
                limit=run(lambda: nested_pairs(Bare(), text, other.encoded)),
            )
        )
        subject.add(Row("make a key", "ns", standfast=run(making_keys)))
        subject.add(hand_over_row())
        subject.add(
            Row(
                "an idle key",
                "bytes",
                standfast=run(lambda: idle_bytes(Exclusion(), PLAIN)),
                peers={
                    "dict of asyncio.Lock": run(lambda: idle_bytes(LockPerKey(), str.encode)),
                },
                bar=plainly_at_most(0.0),
            )
        )
        finish(subject)


def hand_over_row() -> Row:
    """Put ten thousand waiters on one key."""
    key = PLAIN("srv/repo")

    async def ours() -> float:
        exclusion = Exclusion()
        return await hand_overs(lambda: exclusion.hold(key))

    async def limit() -> float:
        bare = Bare()
        return await hand_overs(lambda: bare.hold(key.encoded))

    async def lock() -> float:
        shared = asyncio.Lock()
        return await hand_overs(lambda: shared)

    return Row(
        "hand over, 10,000 waiting",
        "per second",
        standfast=run(ours),
        limit=run(limit),
        peers={"asyncio.Lock": run(lock)},
        bar=at_least(0.9, of="asyncio.Lock"),
    )


if __name__ == "__main__":
    main()
