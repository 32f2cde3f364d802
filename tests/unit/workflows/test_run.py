"""What a run and those who wait for it get from memory is what they would read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import standfast as sf
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows.execution import copy_of

seen: list[list[Any]] = []


@dataclass
class Order:
    """Something with fields."""

    items: list[str]
    at: datetime


@sf.workflow
async def takes(
    ctx: sf.Context, order: Order, codes: set[int], plain: Any, /, pair: tuple[int, str] = (0, ""), *, many: int = 7
) -> dict[str, Any]:
    """Note what it was called with, then change that."""
    seen.append([repr(each) for each in (order, codes, plain, pair, many)])
    order.items.append("more")
    plain["list"].append("more")
    await ctx.step("nothing", dict)
    return {"items": order.items, "plain": plain}


async def test_a_run_is_called_with_what_a_replay_is_called_with() -> None:
    """Its arguments come from memory when it is started, and from the store when it is replayed."""
    seen.clear()
    order, plain = Order(["a"], datetime(2026, 1, 2, tzinfo=UTC)), {"list": ["b"]}
    async with WorkflowEnvironment(workflows=[takes]) as env:
        run = await env.start(takes, order, {3, 1}, plain, many=9)
        await env.result(run)
        await copy_of(env.client.runtime, run.id)

    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_run_and_its_starter_share_nothing() -> None:
    """What the run changes is its own, and so is what each caller gets as its result."""
    order, plain = Order(["a"], datetime(2026, 1, 2, tzinfo=UTC)), {"list": ["b"]}
    async with sf.Engine("memory://", workflows=[takes]) as engine:
        run = await engine.start(takes, order, {1}, plain)
        first, second = await asyncio.gather(run.result(), run.result())
        third = await run.result()

    assert (order.items, plain) == (["a"], {"list": ["b"]})
    assert first == second == third == {"items": ["a", "more"], "plain": {"list": ["b", "more"]}}
    assert first is not second
    assert first["items"] is not second["items"]
    assert third["plain"] is not first["plain"]


async def test_a_result_is_what_every_other_handle_reads() -> None:
    """Also one by id, which reads it as plain data."""
    async with sf.Engine("memory://", workflows=[takes]) as engine:
        run = await engine.start(takes, Order([], datetime(2026, 1, 2, tzinfo=UTC)), {1}, {"list": []})
        own, by_id = await asyncio.gather(run.result(), engine.result(run.id))

    assert own == by_id
