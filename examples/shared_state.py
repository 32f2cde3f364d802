"""Two workers share a counter and a lock in one SQLite file, each through a store handle of its own."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.errors import StaleWriteError
from standfast.locks import DurableMutex

URL = "sqlite:///shared.db"
LOCK = DurableMutex(lease="30s")


async def worker(name: str) -> None:
    """Count visits without a lock, and debit an account under one."""
    async with sf.open(URL) as space:
        slots = space.state
        await asyncio.gather(*(slots.shared("visits", type=int).increment() for _ in range(100)))

        slot, balance = slots.shared("account-42:lock"), slots.shared("account-42", type=int, initial=100)
        place = await LOCK.acquire(slot, name, timeout="10s", poll="10ms")
        try:
            await balance.update(lambda amount: (amount or 0) - 30, guard=LOCK.guard(slot, name, place.fence))
        finally:
            await LOCK.release(slot, name, fence=place.fence)


async def main() -> None:
    """Let two workers at it, then show what a write after the hold comes to."""
    await asyncio.gather(worker("a"), worker("b"))
    async with sf.open(URL) as space:
        slots = space.state
        print(await slots.shared("visits").get(), "visits, none lost")
        print(await slots.shared("account-42").get(), "left on the account")

        slot, balance = slots.shared("account-42:lock"), slots.shared("account-42", type=int)
        place = await LOCK.acquire(slot, "late")
        await LOCK.force_release(slot, "late")
        try:
            await balance.set(0, guard=LOCK.guard(slot, "late", place.fence))
        except StaleWriteError:
            print("a late write was refused")


asyncio.run(main())

# Output:
# 200 visits, none lost
# 40 left on the account
# a late write was refused
