"""A document is reviewed: signals bring verdicts, an update changes the deadline, a query tells how it goes."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.errors import UpdateValidationError


async def publish(title: str) -> str:
    """Do what has to be done when everybody agrees."""
    return f"{title} is published"


@sf.workflow
async def review(ctx: sf.Context, title: str) -> str:
    """Wait for as many verdicts as are asked for."""
    wanted = 2
    verdicts: list[str] = []

    def want(number: int) -> int:
        nonlocal wanted
        wanted = number
        return wanted - len(verdicts)

    def check(number: int) -> None:
        if number < 1:
            raise ValueError("somebody has to look at it")

    ctx.on_update("want", want, validate=check)
    ctx.on_query("verdicts", lambda: list(verdicts))
    while len(verdicts) < wanted:
        verdicts.append(await ctx.wait_signal("verdict"))
    return await ctx.step(publish, title) if set(verdicts) == {"yes"} else f"{title} is sent back"


async def main() -> None:
    """Talk to a run from outside."""
    async with sf.Engine("memory://", workflows=[review]) as engine:
        run = await engine.start(review, "On locks", id="review-1")
        try:
            await run.update("want", 0)
        except UpdateValidationError as refused:
            print("refused:", refused.problem)
        print("verdicts to come:", await run.update("want", 3))

        await run.signal("verdict", "yes", signal_id="ann")
        print("sent again, it is new:", await run.signal("verdict", "yes", signal_id="ann"))
        await run.signal("verdict", "yes", signal_id="bob")
        await run.signal("verdict", "yes", signal_id="cleo")
        print(await run.result(timeout="10 seconds"))
        print("they said", ", ".join(await run.query("verdicts")))


asyncio.run(main())

# Output:
# refused: somebody has to look at it
# verdicts to come: 3
# sent again, it is new: False
# On locks is published
# they said yes, yes, yes
