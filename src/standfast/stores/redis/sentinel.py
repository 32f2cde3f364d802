"""Sentinels: where the primary is, asked of those that decide it, and followed when they decide anew."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Final, cast, final

from msgspec import Struct

from standfast.errors import StoreError, StoreUnavailableError, UnsuitableStoreError
from standfast.stores.redis.connection import LOSSES, REFUSALS, RedisConnection, RedisPool, code_of, translate
from standfast.stores.redis.scripts import pack
from standfast.stores.remote.connection import ConnectBackoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.stores.redis.cluster import Place
    from standfast.stores.redis.connection import Dialer, RedisOptions, Reply

ANSWERS_WITHIN: Final = 1.0
"""Seconds after which a sentinel that says nothing is passed over."""

PING_EVERY: Final = 10.0
"""Seconds between two pings of the sentinel that tells of a new primary."""

_SWITCH: Final = b"+switch-master"
_UNKNOWN: Final = "no such master"


class PrimaryReport(Struct, frozen=True, order=True):
    """What a sentinel says: the epoch, which grows with each failover, and where the primary is since then."""

    epoch: int
    place: tuple[str, int]


@final
class SentinelFinder:
    """Asks sentinels for the primary. Shared by all handles that came from one, and used from several threads.

    Attributes:
        found: The newest report.
    """

    def __init__(self, dialer: Dialer, options: RedisOptions) -> None:
        self.dialer, self.sentinels, self.primary = dialer, options.hosts, options.sentinel
        self._within: Final = min(ANSWERS_WITHIN, options.connect_timeout)
        self._lock: Final = threading.Lock()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self.found: PrimaryReport | None = None

    async def find(self) -> Place:
        """Return where the primary is, by what most of the sentinels say, or all that answer.

        Of several reports the one of the latest epoch counts: a sentinel that was cut off knows an older one.
        """
        reports: list[PrimaryReport] = []
        errors: list[StoreError] = []
        asked = [asyncio.create_task(self._ask(each)) for each in self.sentinels]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    reports.append(await answer)
                except StoreError as error:
                    errors.append(error)
                if len(reports) > len(self.sentinels) // 2:
                    break
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not reports:
            raise next((each for each in errors if isinstance(each, UnsuitableStoreError)), errors[-1])
        return self._meet(max(reports))

    def _meet(self, report: PrimaryReport) -> Place:
        with self._lock:
            known = self.found
            if known is not None and report.epoch < known.epoch:
                return known.place
            self.found = report
            listeners = self._listeners if known is not None and known.place != report.place else ()
        for tell in listeners:
            tell()
        return report.place

    async def _ask(self, sentinel: Place) -> PrimaryReport:
        """Ask one of them; the address is that of a replica as soon as it was promoted."""
        host, port = sentinel
        shown = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        line = await self.dialer.dial_sentinel(host, port, self._within)
        try:
            command = pack("SENTINEL", "MASTER", self.primary)
            command += pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.primary)
            facts, place = await line.exchange(command, 2, loop.time() + self._within)
        except (*LOSSES, TimeoutError) as error:
            raise StoreUnavailableError(self.dialer.name, f"the sentinel {shown} did not answer: {error}") from error
        finally:
            await line.aclose()
        if isinstance(facts, Exception):
            raise self._refused(facts, shown)
        if not isinstance(place, list):
            raise StoreUnavailableError(self.dialer.name, f"the sentinel {shown} knows no primary now")
        told = dict(zip(facts[::2], facts[1::2], strict=True))
        at, number = cast("list[bytes]", place)
        return PrimaryReport(int(told.get(b"config-epoch", 0)), (at.decode(), int(number)))

    def _refused(self, refusal: Exception, shown: str) -> StoreError:
        if _UNKNOWN in str(refusal).lower():
            problem = f"the sentinel {shown} watches no primary that is called {self.primary!r}"
            return UnsuitableStoreError(self.dialer.name, f"{problem}; see 'sentinel monitor' in its settings")
        if "unknown command" in str(refusal):
            return UnsuitableStoreError(self.dialer.name, f"{shown} is no sentinel; redis:// is for servers")
        if code_of(refusal) == "NOAUTH":
            problem = f"the sentinel {shown} wants a password; the option sentinel_password is for it"
            return UnsuitableStoreError(self.dialer.name, f"{problem}, sentinel_auth=true for that of the servers")
        return translate(self.dialer.name, refusal, f"the sentinel {shown}")

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener``, on any thread, when the primary is another one; return what ends that."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return end


@final
class SentinelRoutes:
    """The way to the primary of one handle. It is asked for again when a call fails, and told of by a sentinel.

    A primary that was replaced may be frozen with its connections left open: when a sentinel tells of a new one, the
    connections to the old one are cut, also those that a call waits on.
    """

    def __init__(self, finder: SentinelFinder, size: int) -> None:
        self._finder, self._size = finder, size
        self._place: Place | None = None
        self._pool: RedisPool | None = None
        self._asking: Final = asyncio.Lock()
        self._is_stale = True
        self._loop: Final = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        self._unlisten: Final = finder.listen(self._moved)

    async def pool(self, slot: int) -> RedisPool:
        """Return the connections to the primary."""
        del slot
        if self._following is None:
            self._following = self._loop.create_task(self._follow())
        if self._is_stale or self._pool is None:
            async with self._asking:
                if self._is_stale or self._pool is None:
                    await self._look()
        assert self._pool is not None  # noqa: S101 -- _look has set it, or raised
        return self._pool

    def at_hand(self, slot: int) -> RedisPool | None:
        """Return the connections to the primary, unless it is to be asked for."""
        del slot
        return None if self._is_stale else self._pool

    async def _look(self) -> None:
        place = await self._finder.find()
        self._is_stale = False
        if place != self._place or self._pool is None:
            old, self._place = self._pool, place
            self._pool = RedisPool(self._finder.dialer, *place, self._size, asks_role=True)
            if old is not None:
                old.cut()
                await old.aclose()

    def _moved(self) -> None:
        """Cut what leads to the old primary. Called on any thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        found = self._finder.found
        if self._pool is not None and found is not None and found.place != self._place:
            self._is_stale = True
            self._pool.cut()

    async def pools(self) -> Sequence[RedisPool]:
        """Return the connections to the primary."""
        return (await self.pool(0),)

    def node(self, place: Place) -> RedisPool:
        """Return the connections to the primary: it redirects nothing."""
        del place
        assert self._pool is not None  # noqa: S101 -- it has just answered
        return self._pool

    async def look_again(self) -> None:
        """Ask the sentinels at the next call."""
        self._is_stale = True
        if self._pool is not None:
            await self._pool.drop_idle()

    async def place(self) -> Place:
        """Return where the primary is."""
        await self.pool(0)
        assert self._place is not None  # noqa: S101 -- the pool is there, so its place is
        return self._place

    # --- what a sentinel tells -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Listen to one sentinel after the other, and ask again whenever one tells of a new primary."""
        backoff = ConnectBackoff()
        turn = 0
        while True:
            await backoff.wait()
            sentinel = self._finder.sentinels[turn % len(self._finder.sentinels)]
            turn += 1
            with contextlib.suppress(StoreError, *REFUSALS, *LOSSES, TimeoutError):
                line = await self._finder.dialer.dial_sentinel(*sentinel, ANSWERS_WITHIN)
                try:
                    line.send(pack("SUBSCRIBE", _SWITCH))
                    await self._receive(line, backoff)
                finally:
                    await line.aclose()
            backoff.failed()

    async def _receive(self, line: RedisConnection, backoff: ConnectBackoff) -> None:
        is_pinged = False
        while True:
            try:
                async with asyncio.timeout(ANSWERS_WITHIN if is_pinged else PING_EVERY):
                    message: Reply = await line.receive()
            except TimeoutError:
                if is_pinged:
                    raise
                line.send(pack("PING"))
                is_pinged = True
                continue
            is_pinged = False
            backoff.succeeded()
            if message[0] in {b"subscribe", b"message"}:  # what was told before it listened is asked for
                with contextlib.suppress(StoreError):  # others are asked when a call fails
                    await self._finder.find()

    async def aclose(self) -> None:
        """Close everything."""
        self._unlisten()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        if self._pool is not None:
            await self._pool.aclose()
