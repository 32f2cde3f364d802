"""A store that was restored, and those who used it before."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import standfast as sf
from standfast.stores import Conflict, Put
from standfast.stores.transfer import fence_store
from standfast.testing.conformance.workflows.ground import eventually
from tests.fork_server import forked_exec
from tests.integration.moving.places import fresh_url
from tests.integration.moving.transfers import opened

if TYPE_CHECKING:
    from pathlib import Path

LEASE = "30s"


@sf.workflow
async def patient(ctx: sf.Context) -> str:
    """Wait to be told to go on."""
    await ctx.wait_signal("go")
    return "done"


async def test_a_holder_is_taken_for_gone(url: str) -> None:
    """The lock is free at once, the next one has a higher fence, and a late guarded commit fails."""
    old = await sf.open(url, lease=LEASE)
    async with old.mutex("k").hold(on_lost="tell") as hold:
        async with opened(url) as store:
            fenced = await fence_store(store)

        assert fenced.presences == 1
        assert await asyncio.create_task(fence_of(url)) > hold.fence
        assert isinstance(await old.commit(hold.guard, Put(old.key("late"), b"")), Conflict)
    await old.aclose()


async def fence_of(url: str) -> int:
    """Take the lock, and return its fence."""
    async with sf.open(url, lease=LEASE) as space, space.mutex("k").hold(timeout="10s") as hold:
        return hold.fence


async def test_runs_of_a_copy_are_taken_up_by_new_workers(tmp_path: Path) -> None:
    """The worker that had them lives on beside the original, and the copy does not wait for its lease."""
    url = fresh_url("sqlite", tmp_path)
    async with sf.Engine(url, workflows=[patient], lease="1h") as original:
        run = await original.start(patient, id="patient")
        await original.start(patient, id="another")
        await eventually(lambda: is_claimed(run))
        copy = await copied(url)

        async with opened(copy) as store:
            assert (await fence_store(store)).workers == 1
        async with sf.Engine(copy, workflows=[patient], lease="1h") as restored:
            await restored.run("patient").signal("go")
            assert await restored.run("patient").result(timeout="10s") == "done"


async def is_claimed(run: sf.Run[str]) -> bool:
    """Tell whether a worker has taken a run."""
    return (await run.info()).status != "pending"


async def copied(url: str) -> str:
    """Copy the database of a store in use, from another process, and return the URL of the copy."""
    program = "import apsw, sys; apsw.Connection(sys.argv[1]).execute('VACUUM INTO ?', (sys.argv[2],))"
    path = url.removeprefix("sqlite:///")
    process = await forked_exec(sys.executable, "-c", program, path, f"{path}.copy")
    assert await process.wait() == 0
    return f"{url}.copy"
