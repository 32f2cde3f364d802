"""The backend that common code makes of any server: one writer, grouped reads, subscriptions and sweeps."""

from __future__ import annotations

import asyncio
import contextlib
import random
import warnings
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.errors import StoreError
from standfast.events import NO_HOOKS, Swept
from standfast.stores.backend import Measured, transfer_of
from standfast.stores.group_commit import GroupedStore, own_copy
from standfast.stores.liveness import ForkGuard
from standfast.stores.protocol import Snapshot, StoreMeasure
from standfast.stores.remote.planner import RecordCache
from standfast.stores.remote.subscriptions import RemoteSubscriptions
from standfast.stores.remote.writer import RemoteWriter
from standfast.stores.user_transactions import user_transactions_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, Batching, RiderBatch, Subscriber, Transfer
    from standfast.stores.protocol import Capabilities, Wake
    from standfast.stores.remote.server import DatabaseServer
    from standfast.stores.user_transactions import UserTransactions

    Read = Callable[[Sequence[RecordKey]], Awaitable[Snapshot]]
    Asked = tuple[Sequence[RecordKey], asyncio.Future[Snapshot]]


# --- the backend ---------------------------------------------------------------------------------------------------

SWEEP_EVERY: Final = 10.0
"""How many seconds lie between two sweeps of one handle, give or take a half: those of others are spread out."""

SWEEP_AT_MOST: Final = 500
CLOSED_WITHIN: Final = 5.0


def open_remote(server: DatabaseServer, hooks: Hooks = NO_HOOKS) -> GroupedStore:
    """Make a store of a server that is connected, on the running loop."""
    return GroupedStore(RemoteBackend(server, hooks), hooks, batching=server.batching)


@final
class RemoteBackend:
    """One handle on a server."""

    def __init__(self, server: DatabaseServer, hooks: Hooks = NO_HOOKS) -> None:
        self._server, self._hooks = server, hooks
        self._limits: Final = server.capabilities
        self._loop: Final = asyncio.get_running_loop()
        cache = RecordCache()
        self._subscriptions: Final = RemoteSubscriptions(server, cache.learn_shown)
        self._writer: Final = RemoteWriter(
            server,
            self._limits,
            self._subscriptions.address,
            self._subscriptions.address_each,
            cache,
            self._subscriptions.origin,
        )
        self._reads: Final = ReadGroup(server.read, server.batching)
        self._random: Final = random.Random()  # noqa: S311 -- spreads the sweeps of several processes
        self._sweep_at = self._loop.time() + self._random.uniform(0, SWEEP_EVERY)
        self._sweeping: asyncio.Task[None] | None = None
        self._fork: Final = ForkGuard(server.name)
        self._is_closed = False

    def __del__(self) -> None:
        guard: ForkGuard | None = getattr(self, "_fork", None)  # None if making it failed half-way
        if guard is not None and not guard.crossed and not self._is_closed:
            message = f"the store {self.name} was not closed; use async with, or await its aclose()"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    @property
    def server(self) -> DatabaseServer:
        """The server underneath, for what only it offers."""
        return self._server

    @property
    def capabilities(self) -> Capabilities:
        """What the server can do."""
        return self._limits

    @property
    def name(self) -> str:
        """The server's URL, without secrets."""
        return self._server.name

    # --- writing ---------------------------------------------------------------------------------------------

    def apply_now(self, batch: RiderBatch) -> Applied | None:  # noqa: ARG002 -- as the protocol has it
        """Return None: a network is never at once."""
        return None

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch in one guarded write, or in as many as it takes until the guards hold."""
        return self._note(*await self._writer.apply(batch))

    def apply_soon(
        self, batch: RiderBatch, arrive: Callable[[Applied | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        """Send a batch that needs one guarded write, if the server can do that at once."""

        def take(done: tuple[Applied, int] | Exception | None) -> None:
            if not isinstance(done, tuple):
                arrive(done)
                return
            applied, generation = done  # as _note does, with a call only where there is anything to do
            if generation:
                self._subscriptions.note_generation(generation, applied)
            if self._loop.time() > self._sweep_at:
                self._consider_sweeping()
            arrive(applied)

        return self._writer.apply_soon(batch, take)

    def _note(self, applied: Applied, generation: int) -> Applied:
        if generation:
            self._subscriptions.note_generation(generation, applied)
        self._consider_sweeping()
        return applied

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        return await self._writer.settle(attempt)

    async def user_transactions(self) -> UserTransactions:
        """Return what the server can do over connections of the user's."""
        return await user_transactions_of(self._server, self.name)

    def transfer(self) -> Transfer:
        """Return what moves everything on the server to another one."""
        return transfer_of(self._server, self.name)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot; who reads them is likely to change them next."""
        seen = self._received(await self._reads.read(keys))
        self._writer.cache.learn({key: seen.get(key) for key in keys})
        return seen

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range."""
        return self._received(await self._server.scan(start, end, limit=limit, reverse=reverse))

    def _received(self, seen: Snapshot) -> Snapshot:
        """Decide nothing, from now on, before a moment that was shown to the caller."""
        self._writer.cache.learn_time(seen.at)
        return seen

    # --- notifications ---------------------------------------------------------------------------------------

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Subscribe to commits of this handle at once, and to those of others by way of the server."""
        return self._subscriptions.subscribe(prefixes, subscriber)

    async def until_subscribed(self) -> None:
        """Return when the server knows the subscriptions."""
        await self._subscriptions.until_subscribed()

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Notify the watches of this handle; the server notifies the others."""
        self._subscriptions.notify(changed, wakes)

    # --- upkeep ----------------------------------------------------------------------------------------------

    def _consider_sweeping(self) -> None:
        now = self._loop.time()
        if now > self._sweep_at and self._sweeping is None and not self._is_closed:
            self._sweep_at = now + SWEEP_EVERY * self._random.uniform(0.5, 1.5)
            self._sweeping = self._loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        started, removed = monotonic(), 0
        try:
            with contextlib.suppress(StoreError):  # commits and reads meet the same error and report it
                while (swept := await self._server.sweep(SWEEP_AT_MOST)) > 0:
                    removed += swept
                    if swept < SWEEP_AT_MOST:
                        break
        finally:
            self._sweeping = None
        if self._hooks and removed:
            taken = monotonic() - started
            self._hooks.emit(Swept(at=SYSTEM_CLOCK.wall(), store=self.name, seconds=taken, removed=removed))

    async def measure(self) -> StoreMeasure:
        """Return about how much the server keeps, as far as it tells."""
        return await self._server.measure() if isinstance(self._server, Measured) else StoreMeasure()

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> RemoteBackend:
        """Open another handle on the same server, on the running loop."""
        return RemoteBackend(await self._server.another(), self._hooks)

    def liveness_token(self) -> str:
        """Return a text by which other processes see that this one has died; empty if they cannot."""
        return self._server.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has certainly died."""
        return self._server.is_dead(token)

    async def aclose(self) -> None:
        """Close when what is under way has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSED_WITHIN):
                await self._reads.drain()
                if self._sweeping is not None:
                    await asyncio.wait({self._sweeping})
                await self._subscriptions.aclose()
                await self._writer.retire()
        except (StoreError, TimeoutError):  # closing does not depend on a server that is not there
            pass
        finally:
            await self._server.aclose()


# --- grouped reads: calls that arrive while a read is under way travel together ------------------------------------


@final
class ReadGroup:
    """Reads of one handle, on one event loop."""

    __slots__ = ("_asked", "_batching", "_loop", "_read", "_task")

    def __init__(self, read: Read, batching: Batching) -> None:
        self._read, self._batching = read, batching
        self._loop: Final = asyncio.get_running_loop()
        self._asked: list[Asked] = []
        self._task: asyncio.Task[None] | None = None

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot, perhaps together with what others ask for."""
        answer: asyncio.Future[Snapshot] = self._loop.create_future()
        self._asked.append((keys, answer))
        if self._task is None:
            task = self._loop.create_task(self._travel())
            self._task = None if task.done() else task  # an eager one may be
        return await answer

    async def _travel(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                for some in self._packed([each for each in asked if not each[1].done()]):
                    await self._read_together(some)
        finally:
            self._task = None

    def _packed(self, asked: list[Asked]) -> list[list[Asked]]:
        packs: list[_Pack] = []
        latest: dict[bytes, _Pack] = {}
        for each in asked:
            namespace = b"" if self._batching.spans_namespaces else each[0][0].namespace
            pack = latest.get(namespace)
            if pack is None or pack.size_with(each[0]) > self._batching.max_reads:
                pack = latest[namespace] = _Pack()
                packs.append(pack)
            pack.asked.append(each)
            pack.keys.update(each[0])
        return [pack.asked for pack in packs]

    async def _read_together(self, asked: list[Asked]) -> None:
        keys = list({key: None for each in asked for key in each[0]})
        try:
            seen = await self._read(keys)
        except asyncio.CancelledError:
            for _, answer in asked:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 -- each of them gets it
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(own_copy(error))
            return
        for wanted, answer in asked:
            if not answer.done():
                found = {key: record for key in wanted if (record := seen.get(key)) is not None}
                answer.set_result(Snapshot(seen.at, found))

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait({self._task})


class _Pack:
    """Calls that travel together, and the keys that they name."""

    __slots__ = ("asked", "keys")

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.keys: set[RecordKey] = set()

    def size_with(self, more: Sequence[RecordKey]) -> int:
        return len(self.keys) + sum(key not in self.keys for key in more)
