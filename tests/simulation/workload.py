"""Clients that do random things to a store and tolerate whatever it may rightly do to them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from standfast.errors import OutcomeUnknownError, StoreError
from standfast.keys import RecordKey
from standfast.stores import Check, Conflict, Delete, Put, verdict_of
from standfast.stores.protocol import Decision
from standfast.testing import History, RecordingStore, check_store_history

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.stores import Change, Record, Snapshot, Store

KEYS = [RecordKey("simulated", name) for name in "abc"]
COUNTER = RecordKey("simulated", "counter")
ACTIONS = 8


class Client:
    """One client: acts at random, settles what it does not know, and counts what it was told."""

    def __init__(self, store: RecordingStore, seed: str) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._name = seed
        self._seen: dict[RecordKey, Record | None] = {}
        self._writes = 0
        self.added = 0

    async def act(self) -> None:
        """Do a few random things, some of them for a limited time only."""
        actions = (self._read, self._commit, self._commit, self._append, self._add, self._add, self._watch)
        for _ in range(ACTIONS):
            action = self._random.choice(actions)
            if self._random.random() < 0.2:
                await self._impatiently(action)
            else:
                await self._settled(action)

    async def _impatiently(self, action: Callable[[], Awaitable[Any]]) -> None:
        """Cancel an action after a while; if it was under way, the cancellation carries its verdict."""
        task = asyncio.ensure_future(action())
        await asyncio.wait({task}, timeout=self._random.uniform(0, 0.03))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as cancelled:
            verdict = verdict_of(cancelled)
            if isinstance(verdict, OutcomeUnknownError):
                verdict = await self._settle(verdict.attempt)
            self._count(verdict)
        except OutcomeUnknownError as unknown:
            self._count(await self._settle(unknown.attempt))
        except StoreError:
            return

    async def _settled(self, action: Callable[[], Awaitable[Any]]) -> None:
        try:
            await action()
        except OutcomeUnknownError as unknown:
            self._count(await self._settle(unknown.attempt))
        except StoreError:
            return  # it says that nothing was written

    async def _settle(self, attempt: str) -> Any:
        while True:
            try:
                return await self._store.settle(attempt)
            except StoreError:
                await asyncio.sleep(0.01)

    def _count(self, verdict: Any) -> None:
        self.added += getattr(verdict, "answer", None) == "added"

    # --- what it does ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        keys = self._random.sample(KEYS, 2)
        snapshot = await self._store.read(*keys)
        self._seen.update({key: snapshot.get(key) for key in keys})

    async def _commit(self) -> None:
        keys = self._random.sample(KEYS, self._random.choice((1, 1, 2)))
        verdict = await self._store.commit(*(self._change(key) for key in keys))
        if isinstance(verdict, Conflict):
            self._seen.update(verdict.current)

    def _change(self, key: RecordKey) -> Change:
        record, kind = self._seen.get(key), self._random.random()
        if record is None or kind < 0.6:
            return Put(key, self._value(), 0 if record is None else record.version)
        return Delete(key, record.version) if kind < 0.8 else Check(key, record.version)

    async def _append(self) -> None:
        key, value = self._random.choice(KEYS), self._value()
        await self._store.update([key], lambda seen: appended(seen, key, value))

    async def _add(self) -> None:
        decided = await self._store.update([COUNTER], add)
        self._count(decided)

    async def _watch(self) -> None:
        async with self._store.watch(COUNTER) as watch:
            await watch.wait(self._random.uniform(0, 0.02))

    def _value(self) -> bytes:
        self._writes += 1
        return f"{self._name}.{self._writes},".encode()


def add(seen: Snapshot) -> Decision[str]:
    """Add one to the counter."""
    record = seen.get(COUNTER)
    number = 1 if record is None else int(record.value) + 1
    return Decision("added", (Put(COUNTER, b"%d" % number, seen.version(COUNTER)),))


def appended(seen: Snapshot, key: RecordKey, value: bytes) -> Decision[bytes]:
    """Append to the text at a key."""
    record = seen.get(key)
    whole = value if record is None else record.value + value
    return Decision(whole, (Put(key, whole, seen.version(key)),))


async def work(stores: Sequence[Store], seed: int, clients: int) -> None:
    """Let clients work on several handles of one store, and check what they saw.

    No update is lost, none happens twice, and one order of events explains every answer.
    """
    history = History()
    crowd = [
        Client(RecordingStore(stores[n % len(stores)], history, f"client {n}"), f"{seed}/{n}") for n in range(clients)
    ]
    await asyncio.gather(*(client.act() for client in crowd))
    assert await counted(stores[0]) == sum(client.added for client in crowd)
    check_store_history(history.operations)
    for store in stores:
        await store.aclose()


async def counted(store: Store) -> int:
    """Read the counter, however often it takes."""
    while True:
        try:
            record = (await store.read(COUNTER)).get(COUNTER)
        except StoreError:
            continue
        return 0 if record is None else int(record.value)
