"""Other people's locks between processes, each as its documentation recommends, in an environment of their own."""

from __future__ import annotations

import os
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import portalocker
import psycopg
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


@asynccontextmanager
async def tooz_postgresql(_where: str) -> AsyncIterator[Lock]:
    """Open a lock of tooz on PostgreSQL."""
    coordinator: Any = coordination.get_coordinator(os.environ["STANDFAST_POSTGRESQL_URL"], uuid.uuid4().hex.encode())
    coordinator.start()
    lock = coordinator.get_lock(b"bench")
    yield Blocking(lock.acquire, lock.release)
    coordinator.stop()


@asynccontextmanager
async def advisory(_where: str) -> AsyncIterator[Lock]:
    """Open a connection for PostgreSQL's own locks, which last as long as the session and are kept in memory."""
    connection: Any = psycopg.connect(os.environ["STANDFAST_POSTGRESQL_URL"], autocommit=True)
    run = connection.cursor().execute
    yield Blocking(lambda: run("SELECT pg_advisory_lock(1)"), lambda: run("SELECT pg_advisory_unlock(1)"))
    connection.close()


class RedisPy:
    """A lock of redis-py, and others of the same client."""

    def __init__(self, client: Any, name: str, sleep: float) -> None:  # noqa: ANN401 -- the peers' types are their own
        self._client, self._name, self._sleep = client, name, sleep
        self._lock: Any = client.lock(name, timeout=PATIENCE, sleep=sleep)

    async def acquire(self) -> None:
        """Poll until it is free."""
        await self._lock.acquire()

    async def release(self) -> None:
        """Let go."""
        await self._lock.release()

    def beside(self, number: int) -> Lock:
        """Return the lock of another key."""
        return RedisPy(self._client, f"{self._name}-{number}", self._sleep)


def redis_py(sleep: float) -> Opener:
    """Return what opens a lock of redis-py that polls so often."""

    @asynccontextmanager
    async def open_lock(where: str) -> AsyncIterator[Lock]:
        client: Any = redis.asyncio.Redis.from_url(os.environ["STANDFAST_REDIS_URL"])
        yield RedisPy(client, f"{where}:redis-py", sleep)
        await client.aclose()

    return open_lock


@asynccontextmanager
async def python_redis_lock(where: str) -> AsyncIterator[Lock]:
    """Open a lock of python-redis-lock, which is woken."""
    client: Any = redis.Redis.from_url(os.environ["STANDFAST_REDIS_URL"])
    lock: Any = redis_lock.Lock(client, f"{where}:python-redis-lock", expire=int(PATIENCE))
    yield Blocking(lock.acquire, lock.release)
    client.close()


ON_FILES: dict[str, Opener] = {"filelock": file_lock, "portalocker": port_locker, "tooz": tooz_file}
ON_REDIS: dict[str, Opener] = {
    "redis-py Lock": redis_py(0.1),
    "redis-py Lock, 1 ms": redis_py(0.001),
    "python-redis-lock": python_redis_lock,
}

ON_POSTGRESQL: dict[str, Opener] = {"pg_advisory_lock": advisory, "tooz on PostgreSQL": tooz_postgresql}


def there() -> dict[str, Opener]:
    """Return the locks whose servers are there."""
    servers = {"STANDFAST_REDIS_URL": ON_REDIS, "STANDFAST_POSTGRESQL_URL": ON_POSTGRESQL}
    found = [locks for name, locks in servers.items() if os.environ.get(name)]
    return {name: opener for locks in (ON_FILES, *found) for name, opener in locks.items()}


if __name__ == "__main__":
    serve_orders(there())
