"""Drives a run as it is told: ``drive URL``.

``lease SECONDS RUN`` says ``leased FENCE`` or ``refused``, and does nothing more for it. ``hold RUN`` says
``held FENCE`` or ``refused``, stays inside until it is told anything, and says ``left``.
"""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.errors import RunHeldError
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say, told


async def lease(space: sf.Space, seconds: str, run_id: str) -> None:
    """Lease a run."""
    found = await space.run_locks.try_acquire("checkout", run_id, lease=float(seconds))
    say(*(["refused"] if found is None else ["leased", found.fence]))


async def hold(space: sf.Space, run_id: str) -> None:
    """Hold a run until told anything. Waiting for that blocks the loop: the keeper has a thread of its own."""
    try:
        async with space.run_locks.hold("checkout", run_id) as held:
            say("held", held.fence)
            told()
        say("left")
    except RunHeldError:
        say("refused")


async def main(url: str) -> None:
    """Open the store, say so, and do as told."""
    async with sf.open(url) as space:
        say("ready")
        while words := told():
            if words[0] == "lease":
                await lease(space, *words[1:])
            else:
                await hold(space, *words[1:])


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))
