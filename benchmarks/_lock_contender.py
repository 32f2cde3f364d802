"""One process that contends for a lock, whoever's lock it is: the same loops for Standfast and for its peers.

It gets orders as lines of JSON and answers in JSON. Needs the standard library only, so that peers can use it in an
environment of their own. Instants are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from contextlib import AbstractAsyncContextManager

    Opener = Callable[[str], AbstractAsyncContextManager["Lock"]]
    Role = Callable[..., Coroutine[Any, Any, object]]

GLANCE: Final = 0.0005  # seconds between two glances at what the other one does
HELD_FOR: Final = (0.005, 0.055)  # seconds, at random, so that nobody's polling falls into step with the release


WARMED_UP: Final = ("pairs", "storm", "ping_pong")
"""What begins only when everybody has had the lock once: connections, files and threads are there by then."""


class Lock(Protocol):
    """A lock of anybody. What ``acquire`` returns is kept with the grant, as JSON."""

    async def acquire(self) -> object:
        """Wait for the lock."""
        ...

    async def release(self) -> None:
        """Let go of it."""
        ...


def say(word: object) -> None:
    """Answer with a line of JSON."""
    print(json.dumps(word), flush=True)


async def heard() -> str:
    """Wait for a line; it is empty when there are no more."""
    return await asyncio.to_thread(sys.stdin.readline)


async def until(seen: Callable[[], bool], every: float = GLANCE) -> None:
    """Glance at something now and then until it is so."""
    while not seen():  # noqa: ASYNC110 -- another process makes it so, or one that must not be slowed down by telling
        await asyncio.sleep(every)


def serve_orders(openers: Mapping[str, Opener], roles: Mapping[str, Role] | None = None) -> None:
    """Follow orders until there are no more: ``{"role": "storm", "lock": "flock", "where": "...", ...}``."""
    asyncio.run(_follow(openers, {**ROLES, **(roles or {})}))


async def _follow(openers: Mapping[str, Opener], roles: Mapping[str, Role]) -> None:
    say(list(openers))
    while line := await heard():
        order: dict[str, Any] = json.loads(line)
        name, opener, where = order.pop("role"), openers[order.pop("lock")], order.pop("where")
        async with opener(where) as lock:
            if name in WARMED_UP:
                await lock.acquire()
                await lock.release()
            say("ready")
            begin = int(await heard())
            await asyncio.sleep(max(0, begin - time.monotonic_ns()) / 1e9)
            say(await roles[name](lock, begin, **order))


# --- what a process can be told to do -----------------------------------------------------------------------------


async def pairs(lock: Lock, _begin: int, seconds: float) -> float:
    """Take the lock and let go of it, with nobody else there; return how often that goes in a second."""
    times, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        await lock.acquire()
        await lock.release()
        times += 1
    return times / (time.perf_counter() - started)


class Keyed(Protocol):
    """A lock that has others of its kind beside it, over the same connections."""

    def beside(self, number: int) -> Lock:
        """Return the lock of another key."""
        ...


async def side_by_side(lock: Keyed, _begin: int, seconds: float, keys: int) -> float:
    """Let a task take the lock of each key again and again; return how often that goes in a second, all together."""
    locks = [lock.beside(number) for number in range(keys)]
    await asyncio.gather(*(pairs(each, 0, seconds / 4) for each in locks))  # connections are there by then
    return sum(await asyncio.gather(*(pairs(each, 0, seconds) for each in locks)))


async def storm(lock: Lock, begin: int, seconds: float) -> list[tuple[int, int, int, object]]:
    """Ask, let go, ask again; return when each was asked for, granted and released, counted from the begin."""
    grants: list[tuple[int, int, int, object]] = []
    now = time.monotonic_ns
    end = begin + int(seconds * 1e9)
    while (asked := now()) < end:
        proof = await lock.acquire()
        got = now()
        released = now()
        await lock.release()
        grants.append((asked - begin, got - begin, released - begin, proof))
    return grants


class Board:
    """What two players know of each other: how often each has asked, and how often it was granted."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), 32)

    def read(self, word: int) -> int:
        """Return a word."""
        return int(struct.unpack_from("q", self._words, word * 8)[0])

    def count(self, word: int) -> None:
        """Add one to a word."""
        struct.pack_into("q", self._words, word * 8, self.read(word) + 1)

    def waits(self, player: int) -> bool:
        """Tell whether a player has asked and was not granted yet."""
        return self.read(player) > self.read(2 + player)


async def ping_pong(lock: Lock, begin: int, seconds: float, me: int, board: str) -> dict[str, list[int]]:
    """Hold until the other waits, let go, ask again when the other has it; return when it was granted and released."""
    shared, other, end = Board(board), 1 - me, begin + int(seconds * 1e9)
    got: list[int] = []
    released: list[int] = []
    await until(lambda: me == 0 or shared.read(2) > 0)
    while time.monotonic_ns() < end:
        shared.count(me)
        await lock.acquire()
        got.append(time.monotonic_ns())
        shared.count(2 + me)
        await until(lambda: shared.waits(other) or time.monotonic_ns() >= end)
        if shared.waits(other):
            await asyncio.sleep(random.uniform(*HELD_FOR))
        released.append(time.monotonic_ns())
        await lock.release()
        await until(lambda: not shared.waits(other))
    return {"got": got, "released": released}


async def hold(lock: Lock, _begin: int) -> None:
    """Hold the lock until the process is killed."""
    await lock.acquire()
    say("held")
    await asyncio.Event().wait()


async def take(lock: Lock, _begin: int) -> int:
    """Ask for the lock, saying so; return when it was granted."""
    say("asking")
    await lock.acquire()
    got = time.monotonic_ns()
    await lock.release()
    return got


ROLES: Final[dict[str, Role]] = {
    "pairs": pairs,
    "side_by_side": side_by_side,
    "storm": storm,
    "ping_pong": ping_pong,
    "hold": hold,
    "take": take,
}
