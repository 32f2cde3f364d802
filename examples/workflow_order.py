"""An order as a workflow: its process is killed while it packs, and the next one goes on there."""

from __future__ import annotations

import asyncio
import sys

import standfast as sf

PACKED_BY = "packed by the second process"


@sf.step
async def charge(order: str) -> str:
    """Say that the customer pays; this must be seen once."""
    print(f"{order} is charged", flush=True)
    return f"receipt for {order}"


@sf.step
async def pack(order: str) -> str:
    """Pack; the first process never gets to the end of it."""
    print(f"{order} is being packed, key {sf.current_step().idempotency_key}", flush=True)
    if sys.argv[1:] == ["first"]:
        await asyncio.Event().wait()
    return PACKED_BY


@sf.workflow
async def fulfil(ctx: sf.Context, order: str) -> str:
    """What happens to an order, in which order."""
    receipt = await ctx.step(charge, order)
    return f"{receipt}, {await ctx.step(pack, order)}"


async def drive() -> None:
    """Start the order, or find it where it is, and see it through."""
    async with sf.Engine("sqlite:///orders.db", workflows=[fulfil]) as engine:
        run = await engine.start(fulfil, "tea", id="order-7")
        print(await run.result(), flush=True)


async def main() -> None:
    """Kill the first process when it packs, and start a second one."""
    first = await asyncio.create_subprocess_exec(sys.executable, __file__, "first", stdout=asyncio.subprocess.PIPE)
    assert first.stdout is not None
    print("the first says", (await first.stdout.readline()).decode(), end="")
    print("the first says", (await first.stdout.readline()).decode(), end="")
    first.kill()
    await first.wait()
    second = await asyncio.create_subprocess_exec(sys.executable, __file__, "second", stdout=asyncio.subprocess.PIPE)
    said, _ = await second.communicate()
    for line in said.decode().splitlines():
        print("the second says", line)


asyncio.run(drive() if sys.argv[1:] else main())

# Output:
# the first says tea is charged
# the first says tea is being packed, key order-7:pack
# the second says tea is being packed, key order-7:pack
# the second says receipt for tea, packed by the second process
