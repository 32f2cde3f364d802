"""The ids of operations, whatever users call things."""

from __future__ import annotations

from typing import Any

import standfast as sf
from standfast.testing.workflows import WorkflowEnvironment


@sf.workflow
async def slashes(ctx: sf.Context) -> list[Any]:
    """Name things with slashes, in branches too, and be replayed."""
    news = await ctx.gather(ctx.wait_signal("a/b"), ctx.wait_signal("a%2Fb"))
    is_new = await ctx.patched("fix/7")
    await ctx.sleep("1 hour")
    return [*news, is_new, await ctx.wait_signal("a/b")]


async def test_names_may_have_slashes() -> None:
    """A slash in a name is not taken for the end of a branch's path, and no two names are taken for one."""
    async with WorkflowEnvironment([slashes], linger=0) as env:
        run = await env.start(slashes)
        for name, value in (("a%2Fb", 2), ("a/b", 1), ("a/b", 3)):
            await run.signal(name, value)
        assert await env.result(run) == [1, 2, True, 3]
