"""A bare mutex on a store's alternatives, and contenders that check everything a mutex must keep."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from standfast.clock import monotonic
from standfast.keys import RecordKey
from standfast.stores import Alternative, Append, Choice, Conflict, Delete, Empty, MoveFirst, Present, Put, Stamped
from standfast.stores.protocol import unstamped

if TYPE_CHECKING:
    from standfast.stores import Store, Watch

PATIENCE = 10.0
"""Seconds after which a waiter that was told nothing looks for itself."""


class Line:
    """One mutex: its keys, and what all who had it have seen."""

    def __init__(self, name: str) -> None:
        key = RecordKey("race", name)
        self.grant, self.head = key.child("grant", "0"), key.child("line")
        self.tickets, self.inboxes = key.child("ticket"), key.child("inbox")
        self.fences: list[int] = []
        self.tickets_served: list[RecordKey] = []
        self.holder: str | None = None
        self.found_free = self.freed = self.polled = 0

    async def enter(self, store: Store, name: str) -> Choice:
        """Take it, or line up."""
        entry = name.encode()
        done = await store.choose(
            Alternative((Put(self.head, b""), Stamped(self.grant, entry))),
            Alternative((Present(self.head), Append(self.tickets, entry, RecordKey(name), stamped=True))),
        )
        assert isinstance(done, Choice), done
        return done

    async def leave(self, store: Store, fence: int, head: int) -> Choice:
        """Pass it on, or free it."""
        done = await store.choose(
            Alternative((MoveFirst(self.tickets, self.grant, fence, self.inboxes),)),
            Alternative((Empty(self.tickets), Delete(self.head, head), Delete(self.grant, fence))),
        )
        assert not isinstance(done, Conflict), done
        if done.index == 0 and done.moved_from is not None:
            self.tickets_served.append(done.moved_from)
        self.freed += done.index == 1
        return done

    def hold(self, name: str, fence: int) -> None:
        """Note who has it, and that nobody else has."""
        assert self.holder is None, f"{name} and {self.holder}"
        assert not self.fences or fence > self.fences[-1], (fence, self.fences[-1])
        self.holder = name
        self.fences.append(fence)

    async def contend(self, store: Store, name: str, rounds: int, seed: int, *, crowd: int = 1) -> None:
        """Hold it some times. Pauses are as long as a crowd of so many needs, so that it is free now and then."""
        dice = random.Random(seed)
        async with store.watch(self.inboxes.child(name)) as watch:
            for _ in range(rounds):
                entered = await self.enter(store, name)
                if entered.index == 0:
                    self.found_free += 1
                    fence = entered.versions[self.grant]
                else:
                    fence = await self._granted(store, watch, name)
                self.hold(name, fence)
                if dice.random() < 0.3:
                    await asyncio.sleep(dice.uniform(0, 0.002))
                head = (await store.read(self.head)).version(self.head)
                self.holder, started = None, monotonic()
                await self.leave(store, fence, head)
                if dice.random() < 0.8:
                    await asyncio.sleep(dice.uniform(0, 4 * crowd * (monotonic() - started)))

    async def _granted(self, store: Store, watch: Watch, name: str) -> int:
        last = self.fences[-1] if self.fences else 0
        while True:
            heard = await watch.wait(PATIENCE)
            for record in () if heard is None else heard.moved:
                if record.version > last and unstamped(unstamped(record.value)[1])[1] == name.encode():
                    return record.version
            if heard is None or not heard.moved:
                self.polled += 1
                found = (await store.read(self.grant)).get(self.grant)
                assert found is not None, f"{name} waits for a line that is free"
                if found.version > last and found.value.endswith(name.encode()):
                    return found.version
