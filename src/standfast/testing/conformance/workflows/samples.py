"""Small workflows that the tests run, and a ledger of what their steps did."""

from __future__ import annotations

from typing import Any, Final

import standfast as sf

DONE: Final[list[str]] = []
"""What steps did, in order."""

QUICKLY: Final = sf.Retry(attempts=3, delay=0.001)


@sf.step
async def act(name: str) -> str:
    """Do something that others see."""
    DONE.append(name)
    return f"did {name}"


@sf.step
def act_in_a_thread(name: str) -> str:
    """Do the same as a plain function."""
    DONE.append(name)
    return f"did {name}"


@sf.step(retry=QUICKLY)
async def act_at_last(name: str, failures: int) -> str:
    """Fail a number of times before it works."""
    DONE.append(name)
    if DONE.count(name) <= failures:
        raise ConnectionError(name)
    return f"did {name}"


@sf.workflow
async def acts(ctx: sf.Context, names: list[str]) -> list[str]:
    """Do one thing after another."""
    return [await ctx.step(name, act, name) for name in names]


@sf.workflow
async def persists(ctx: sf.Context, failures: int) -> str:
    """Do something that fails a few times."""
    return await ctx.step(act_at_last, "it", failures)


@sf.workflow
async def fails(ctx: sf.Context, message: str) -> None:
    """Act, and raise."""
    await ctx.step(act, "before")
    raise ValueError(message)


@sf.workflow
async def sleeps(ctx: sf.Context, seconds: float) -> str:
    """Act before and after a sleep."""
    await ctx.step("before", act, "before")
    await ctx.sleep(seconds)
    return await ctx.step("after", act, "after")


@sf.workflow
async def collects(ctx: sf.Context, count: int) -> list[Any]:
    """Take a number of signals."""
    return [await ctx.wait_signal("item") for _ in range(count)]


@sf.workflow
async def account(ctx: sf.Context, balance: int) -> int:
    """Take deposits until it is closed."""
    closed = False

    def deposit(amount: int) -> int:
        nonlocal balance
        balance += amount
        return balance

    def positive(amount: int) -> None:
        if amount <= 0:
            raise ValueError(amount)

    def close() -> None:
        nonlocal closed
        closed = True

    ctx.on_query("balance", lambda: balance)
    ctx.on_update("deposit", deposit, validate=positive)
    ctx.on_update("close", close)
    await ctx.wait_until(lambda: closed)
    return balance


@sf.workflow
async def parent(ctx: sf.Context, names: list[str]) -> list[list[str]]:
    """Let children act, all at a time."""
    return await ctx.gather(*(ctx.child(acts, [name]) for name in names))


@sf.workflow
async def guardian(ctx: sf.Context) -> list[Any]:
    """Wait for a child that waits for a signal."""
    return await ctx.child(collects, 1)


@sf.workflow
async def counts_down(ctx: sf.Context, number: int) -> str:
    """Go on as a new run until nothing is left."""
    await ctx.step(act, str(number))
    if number:
        await ctx.continue_as_new(number - 1)
    return "zero"


@sf.workflow
async def enters(ctx: sf.Context, key: str, name: str) -> str:
    """Hold a mutex until told to go on."""
    async with ctx.mutex(key):
        await ctx.step("in", act, f"{name} in")
        await ctx.wait_signal("go")
        await ctx.step("out", act, f"{name} out")
    return name


@sf.workflow
async def cleans_up(ctx: sf.Context) -> None:
    """Wait for ever; clean up when told to stop."""
    try:
        await ctx.wait_signal("never")
    except sf.RunCancelled:
        await ctx.step("clean", act, "clean")
        raise


@sf.workflow(concurrency=sf.Limit(1, key=str, on_limit="queue"))
async def takes_turns(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one run of each name at a time."""
    await ctx.step(act, name)
    return f"{name} {await ctx.wait_signal('go')}"


WORKFLOWS: Final = (
    acts,
    persists,
    fails,
    sleeps,
    collects,
    account,
    parent,
    guardian,
    counts_down,
    enters,
    cleans_up,
    takes_turns,
)
"""What every engine of these tests can run."""
