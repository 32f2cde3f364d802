"""The flow that processes serve in these tests; what an action does is heard and told by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import standfast as sf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def flow_of(work: Callable[[sf.Request, str], Awaitable[str]]) -> sf.Flow:
    """Return a flow whose actions all do the same, each by a policy of its own."""
    flow = sf.Flow("chat")

    @flow.action(concurrency=sf.Queue(timeout="60s"))
    async def queued(request: sf.Request, name: str) -> str:
        return await work(request, name)

    @flow.action(concurrency=sf.Queue(timeout="60s"), interrupted="fail")
    async def delicate(request: sf.Request, name: str) -> str:
        return await work(request, name)

    @flow.action(concurrency=sf.Debounce("100ms"))
    async def debounced(request: sf.Request, name: str) -> str:
        return await work(request, name)

    return flow


async def nothing(request: sf.Request, name: str) -> str:
    """Do nothing: whoever only sends requests does not run them."""
    return f"{request.id}{name}"
