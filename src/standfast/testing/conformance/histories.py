"""Histories: what several clients saw, explained by one order of events."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from standfast.stores import Check, Conflict, Delete, Put
from standfast.testing.conformance.ground import Ground, another, append
from standfast.testing.histories import History, RecordingStore, check_store_history

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores import Change, Record, Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother


class Client:
    """Someone who does random things to a few keys, guarding at versions that may be stale by now."""

    def __init__(self, store: Store, keys: list[RecordKey], seed: str) -> None:
        self._store, self._keys = store, keys
        self._random = random.Random(seed)
        self._seen: dict[RecordKey, Record | None] = {}
        self._writes = 0
        self._name = seed

    async def act(self, times: int) -> None:
        """Do so many random things."""
        for _ in range(times):
            await self._random.choice((self._read, self._commit, self._commit, self._update))()
            await asyncio.sleep(0)

    async def _read(self) -> None:
        keys = self._random.sample(self._keys, 2)
        snapshot = await self._store.read(*keys)
        self._seen.update({key: snapshot.get(key) for key in keys})

    async def _commit(self) -> None:
        keys = self._random.sample(self._keys, self._random.choice((1, 1, 2)))
        verdict = await self._store.commit(*(self._change(key) for key in keys))
        if isinstance(verdict, Conflict):
            self._seen.update(verdict.current)

    def _change(self, key: RecordKey) -> Change:
        record = self._seen.get(key)
        kind = self._random.random()
        if record is None or kind < 0.6:
            return Put(key, self._value(), 0 if record is None else record.version)
        return Delete(key, record.version) if kind < 0.8 else Check(key, record.version)

    async def _update(self) -> None:
        key = self._random.choice(self._keys)
        await self._store.update([key], append(key, self._value()))

    def _value(self) -> bytes:
        self._writes += 1
        return f"{self._name}.{self._writes},".encode()


class HistoryCases(Ground):
    """Random clients, recorded and checked."""

    @pytest.fixture
    def history_seed(self) -> int:
        """Return the seed of the random clients; it is printed when a test fails."""
        seed = random.randrange(2**32)
        print(f"history_seed={seed}")
        return seed

    async def test_the_history_of_one_handle_is_linearizable(
        self, store: Store, key: MakeKey, history_seed: int
    ) -> None:
        """An order of all operations explains every answer that six clients got."""
        history, keys = History(), [key(name) for name in "abc"]
        recorders = [RecordingStore(store, history, f"client {n}") for n in range(6)]

        await asyncio.gather(*(Client(each, keys, f"{history_seed}/{n}").act(15) for n, each in enumerate(recorders)))

        check_store_history(history.operations)

    async def test_the_history_of_two_handles_is_linearizable(
        self, store: Store, key: MakeKey, open_another: OpenAnother, history_seed: int
    ) -> None:
        """Through whichever handle a client comes, its operations fit into one order with all others."""
        history, keys = History(), [key(name) for name in "abc"]
        async with another(open_another) as other:
            recorders = [RecordingStore((store, other)[n % 2], history, f"client {n}") for n in range(6)]
            await asyncio.gather(
                *(Client(each, keys, f"{history_seed}/{n}").act(15) for n, each in enumerate(recorders))
            )

        check_store_history(history.operations)
