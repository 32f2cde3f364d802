"""Other people's locks between processes, each as its documentation recommends, in an environment of their own."""

from __future__ import annotations

import os
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import portalocker
import redis
import redis.asyncio
import redis_lock
from tooz import coordination

from benchmarks._lock_contender import serve_orders
from benchmarks._lock_flock import Blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks._lock_contender import Lock, Opener

PATIENCE = 60.0  # seconds; longer than anybody waits here


@asynccontextmanager
async def file_lock(where: str) -> AsyncIterator[Lock]:
    """Open a lock of filelock, which polls."""
    lock: Any = filelock.FileLock(f"{where}.filelock")
    yield Blocking(lock.acquire, lock.release)


@asynccontextmanager
async def port_locker(where: str) -> AsyncIterator[Lock]:
    """Open a lock of portalocker, which polls."""
    lock: Any = portalocker.Lock(f"{where}.portalocker", timeout=PATIENCE)
    yield Blocking(lock.acquire, lock.release)


@asynccontextmanager
async def tooz_file(where: str) -> AsyncIterator[Lock]:
    """Open a lock of tooz on a folder."""
    folder = Path(f"{where}.tooz")
    coordinator: Any = coordination.get_coordinator(f"file://{folder}", uuid.uuid4().hex.encode())
    coordinator.start()
    lock = coordinator.get_lock(b"bench")
    yield Blocking(lock.acquire, lock.release)
    coordinator.stop()


def redis_py(sleep: float) -> Opener:
    """Return what opens a lock of redis-py that polls so often."""

    @asynccontextmanager
    async def open_lock(where: str) -> AsyncIterator[Lock]:
        client: Any = redis.asyncio.Redis.from_url(os.environ["HOLDFAST_REDIS_URL"])
        yield client.lock(f"{where}:redis-py", timeout=PATIENCE, sleep=sleep)
        await client.aclose()

    return open_lock


@asynccontextmanager
async def python_redis_lock(where: str) -> AsyncIterator[Lock]:
    """Open a lock of python-redis-lock, which is woken."""
    client: Any = redis.Redis.from_url(os.environ["HOLDFAST_REDIS_URL"])
    lock: Any = redis_lock.Lock(client, f"{where}:python-redis-lock", expire=int(PATIENCE))
    yield Blocking(lock.acquire, lock.release)
    client.close()


ON_FILES: dict[str, Opener] = {"filelock": file_lock, "portalocker": port_locker, "tooz": tooz_file}
ON_REDIS: dict[str, Opener] = {
    "redis-py Lock": redis_py(0.1),
    "redis-py Lock, 1 ms": redis_py(0.001),
    "python-redis-lock": python_redis_lock,
}

if __name__ == "__main__":
    serve_orders({**ON_FILES, **(ON_REDIS if os.environ.get("HOLDFAST_REDIS_URL") else {})})
