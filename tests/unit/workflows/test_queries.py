"""Waiting for the ends of runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import standfast as sf
from standfast.stores.protocol import Put
from standfast.workflows import queries as awaiting
from standfast.workflows.queries import Endings
from standfast.workflows.records import RUN_STATES, RunState

if TYPE_CHECKING:
    import pytest

    from standfast.space import Space

AT = sf.clock.Instant(1)


async def test_an_end_whose_hint_is_lost_is_found_while_others_end_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look by the clock is not put off by hints about other runs."""
    monkeypatch.setattr(awaiting, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(awaiting, "FEW", 0)
    async with sf.open("memory://") as space:
        key = space.key("life", "r-1")
        await space.commit(Put(key, RUN_STATES.encode(RunState("running", workflow="w", version="", changed_at=AT))))
        endings = Endings(space, loaded={"r-1"})  # so that hints about it are passed over
        waiting = asyncio.ensure_future(endings.of("r-1"))
        many = asyncio.Event()
        noise = asyncio.ensure_future(_end_all_the_time(space, many))
        await many.wait()  # it was looked at before, and waits for hints by now
        version = (await space.read(key)).version(key)
        over = RunState("completed", workflow="w", version="", changed_at=AT)
        await space.commit(Put(key, RUN_STATES.encode(over), version))

        assert (await asyncio.wait_for(waiting, 10)).status == "completed"
        noise.cancel()


async def _end_all_the_time(space: Space, many: asyncio.Event) -> None:
    number = 0
    while True:
        number += 1
        await space.commit(Put(space.key("life", f"noise-{number}"), b"1:{}"))
        if number == 5:
            many.set()
        await asyncio.sleep(0.005)
