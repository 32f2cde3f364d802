"""How the processes of the demonstration hear from it and tell it something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standfast import Space
    from standfast.keys import RecordKey


def say(**facts: object) -> None:
    """Tell the process that started this one."""
    print(json.dumps(facts), flush=True)


async def reach(space: Space, phase: RecordKey, wanted: bytes) -> None:
    """Wait until the phase is what is wanted, woken by hints."""
    async with space.watch(phase) as watch:
        while (record := (await space.read(phase)).get(phase)) is None or record.value != wanted:
            await watch.wait(timeout=1)
