"""A process that holds a mutex or drives a run until it is killed or paused: the actor of ``benchmarks.promises``.

``python -m benchmarks._promise_actor ROLE URL NAMESPACE LEASE [slow]``. It reads orders from its input, one a line, and
prints what happened as lines of JSON with the machine's monotonic time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import StandfastError

if TYPE_CHECKING:
    from standfast.locks.locks import Hold

SLOW = "slow" in sys.argv


def say(what: str, **facts: object) -> None:
    """Print one thing that happened, now."""
    print(json.dumps({"what": what, "at": monotonic(), **facts}), flush=True)


async def ordered() -> str:
    """Wait for the next order; the end of the input is the order to leave."""
    return (await asyncio.to_thread(sys.stdin.readline)).strip() or "leave"


async def hold(url: str, namespace: str, lease: str) -> None:
    """Hold a mutex until told to leave; when told to write, write under the guard of the hold."""
    async with sf.open(url, namespace=namespace, lease=lease) as space:
        balance = space.state.shared("balance", type=int, initial=0)
        granted: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        say("ready")
        holding = asyncio.create_task(held_until_cancelled(space, granted))
        while (order := await ordered()) != "leave":
            if order == "write":
                try:
                    await balance.update(one_more, guard=(await granted).guard)
                    say("written")
                except StandfastError as error:
                    say("refused", error=type(error).__name__)
        holding.cancel()
        await asyncio.wait([holding])
        say("left")


def one_more(amount: int | None) -> int:
    """Return what is stored next."""
    return (amount or 0) + 1


async def held_until_cancelled(space: sf.Space, granted: asyncio.Future[Hold]) -> None:
    """Hold the mutex in a task of its own, so that a lost lease ends this task and not the one that takes orders."""
    async with space.mutex("account").hold() as held:
        say("held", fence=held.fence)
        granted.set_result(held)
        await asyncio.Event().wait()


@sf.step
async def first() -> int:
    """Be recorded before the second step begins."""
    say("step", step="first")
    return 1


@sf.step
async def second() -> int:
    """Take until the next order where the process is slow."""
    say("step", step="second")
    if SLOW:
        await ordered()
    say("done", step="second")
    return 2


@sf.workflow
async def payment(ctx: sf.Context) -> int:
    """Two steps, of which the second is under way when its process is killed or paused."""
    return await ctx.step(first) + await ctx.step(second)


async def work(url: str, namespace: str, lease: str) -> None:
    """Drive runs; a slow worker starts the one run, and its second step waits for an order."""
    async with sf.Engine(url, workflows=[payment], namespace=namespace, lease=lease) as engine:
        say("ready")
        if SLOW:
            say("result", result=await (await engine.start(payment, id="one")).result())
        while (await ordered()) != "leave":
            pass


if __name__ == "__main__":
    asyncio.run({"hold": hold, "work": work}[sys.argv[1]](*sys.argv[2:5]))
