"""A declared order of keys is enforced; where none is declared, contradictions are reported before they meet."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.errors import LockOrderError, ReentryError, WaitCycleError
from standfast.events import Event, LockOrderInverted

GATE = sf.KeyFamily("gate")
ACTIVITY = sf.KeyFamily("activity", after=(GATE,))
LEFT, RIGHT = sf.KeyFamily("left"), sf.KeyFamily("right")


def report(event: Event) -> None:
    """Say what was observed."""
    if isinstance(event, LockOrderInverted):
        print(f"contradiction: {event.wanted} on top of {event.held}, and elsewhere the other way round")


exclusion = sf.Exclusion(hooks=[report])


async def both(first: sf.Key, second: sf.Key) -> str:
    """Take two keys, one on top of the other."""
    async with exclusion.hold(first):
        await asyncio.sleep(0)
        async with exclusion.hold(second):
            return "both"


async def main() -> None:
    """Try what is allowed and what is not."""
    print("gate, then activity:", await both(GATE(), ACTIVITY()))
    try:
        await both(ACTIVITY(), GATE())
    except LockOrderError as error:
        print(f"refused: {error.wanted} must come before {error.held}")
    try:
        await both(GATE(), GATE())
    except ReentryError as error:
        print(f"refused: {error.key} is held already")

    answers = await asyncio.gather(both(LEFT(), RIGHT()), both(RIGHT(), LEFT()), return_exceptions=True)
    print("two tasks, opposite orders:", [answer if answer == "both" else type(answer).__name__ for answer in answers])
    assert isinstance(answers[1], WaitCycleError)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# gate, then activity: both
# refused: gate() must come before activity()
# refused: gate() is held already
# contradiction: left() on top of right(), and elsewhere the other way round
# two tasks, opposite orders: ['both', 'WaitCycleError']
