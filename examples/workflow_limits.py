"""One import for each customer at a time: a second start waits for its turn, or is refused."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.errors import WorkflowConcurrencyLimitExceededError

order: list[str] = []


async def load(file: str) -> None:
    """Take note of what is loaded, and when."""
    order.append(file)


@sf.workflow(concurrency=sf.Limit(1, key=lambda customer, _file: customer, on_limit="queue", max_queued=1))
async def load_file(ctx: sf.Context, customer: str, file: str) -> str:
    """Load a file when somebody says so."""
    del customer
    await ctx.wait_signal("go")
    await ctx.step(load, file)
    return file


async def main() -> None:
    """Start more than the limit allows."""
    async with sf.Engine("memory://", workflows=[load_file]) as engine:
        first = await engine.start(load_file, "ann", "may.csv")
        second = await engine.start(load_file, "ann", "june.csv")
        other = await engine.start(load_file, "bob", "may.csv")
        print("ann's second is", (await second.info()).status, "with", await second.place(), "in front")
        print("bob has a line of his own:", (await other.info()).status != "pending")
        try:
            await engine.start(load_file, "ann", "july.csv")
        except WorkflowConcurrencyLimitExceededError as full:
            print("a third of", full.partition_key, "is refused")

        await second.signal("go")  # it waits in the inbox
        await first.signal("go")
        await second.result(timeout="10 seconds")
        print("ann's files in order:", ", ".join(order))


asyncio.run(main())

# Output:
# ann's second is pending with 0 in front
# bob has a line of his own: True
# a third of ann is refused
# ann's files in order: may.csv, june.csv
