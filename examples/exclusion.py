"""Tasks take turns on a key, first come, first served; other keys are not held up."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.errors import HoldTimeoutError, WouldWaitError

REPOSITORY = sf.KeyFamily("repository")
exclusion = sf.Exclusion()


async def publish(path: str, who: str) -> None:
    """Publish a repository; one task at a time may do that."""
    async with exclusion.hold(REPOSITORY(path)):
        print(f"{who} publishes {path}")
        await asyncio.sleep(0.01)


async def look_and_give_up() -> None:
    """See who holds a key, try it, and wait for it only so long."""
    await asyncio.sleep(0)
    site = REPOSITORY("site")
    state = exclusion.inspect(site)
    print(f"held by {[each.task for each in state.holders]}, then {[each.task for each in state.waiters]}")
    try:
        async with exclusion.try_hold(site):
            print("never printed")
    except WouldWaitError:
        print("somebody has it")
    try:
        async with exclusion.hold(site, timeout="1 ms"):
            print("never printed")
    except HoldTimeoutError as error:
        print(f"not free within {error.timeout * 1000:g} ms")


async def main() -> None:
    """Let three tasks contend."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish("site", "Ada"), name="ada")
        tasks.create_task(publish("site", "Bob"), name="bob")
        tasks.create_task(publish("wiki", "Cleo"), name="cleo")
        tasks.create_task(look_and_give_up())
    print("keys in use at the end:", exclusion.inspect())


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# Ada publishes site
# Cleo publishes wiki
# held by ['ada'], then ['bob']
# somebody has it
# not free within 1 ms
# Bob publishes site
# keys in use at the end: ()
