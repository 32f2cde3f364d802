"""A report every weekday at nine in Berlin, tried out over two weeks that pass at once."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.testing.workflows import WorkflowEnvironment

sent: list[str] = []


async def send(day: str) -> None:
    """Send the report of a day."""
    sent.append(day)


@sf.workflow
async def report(ctx: sf.Context) -> None:
    """Send the report of the day."""
    await ctx.step(send, (await ctx.now()).strftime("%A"))


async def main() -> None:
    """Let two weeks pass."""
    async with WorkflowEnvironment(workflows=[report]) as env:
        daily = sf.Schedule(report, id="daily", cron="0 9 * * mon-fri", zone="Europe/Berlin")
        await env.client.schedules.create(daily)
        await env.advance("14 days")

        info = await env.client.schedules.get("daily")
        print(info.started, "runs,", info.missed, "missed")
        print("none at a weekend:", not {"Saturday", "Sunday"} & set(sent))


asyncio.run(main())

# Output:
# 10 runs, 0 missed
# none at a weekend: True
