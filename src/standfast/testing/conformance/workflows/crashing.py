"""Crashes: at whichever commit a process dies, another one goes on as if nothing had happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.testing.conformance.workflows.ground import WorkflowGround
from standfast.testing.conformance.workflows.samples import act, acts
from standfast.testing.workflows import crash_everywhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.stores import Store
    from standfast.testing.workflows import WorkflowEnvironment


@sf.workflow
async def naps(ctx: sf.Context) -> str:
    """Sleep between two steps."""
    await ctx.step("before", act, "before")
    await ctx.sleep(0.005)
    return await ctx.step("after", act, "after")


@sf.workflow
async def guards(ctx: sf.Context) -> list[Any]:
    """Take a signal under a lock, and count it."""
    async with ctx.mutex("k"):
        found = await ctx.wait_signal("item")
        return [found, await ctx.state.run("count", type=int, initial=0).increment()]


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def delegates(ctx: sf.Context) -> list[Any]:
    """Let a child act beside a branch of its own, under a limit."""
    return await ctx.gather(ctx.child(acts, ["a"]), ctx.step("own", act, "own"))


async def send(_env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Send a signal, as somebody outside does."""
    await run.signal("item", "x", signal_id="once")


class CrashingCases(WorkflowGround):
    """A process that dies right before or right after each of its commits. Deaths are seen at once here."""

    async def test_steps_and_sleeps_survive_every_crash(self, open_another: Callable[[], Awaitable[Store]]) -> None:
        """What was recorded is not done again, and the end is the same."""
        survived = await crash_everywhere(naps, store=open_another)
        assert survived.crashes >= 4

    async def test_locks_and_states_survive_every_crash(self, open_another: Callable[[], Awaitable[Store]]) -> None:
        """The lock is taken once and given back, and the count is one."""
        survived = await crash_everywhere(guards, script=send, store=open_another)
        assert survived.crashes >= 4

    async def test_children_and_limits_survive_every_crash(self, open_another: Callable[[], Awaitable[Store]]) -> None:
        """The child is started once, and nothing is left of the limit."""
        survived = await crash_everywhere(delegates, workflows=[acts], store=open_another)
        assert survived.crashes >= 4
