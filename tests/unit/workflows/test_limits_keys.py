"""The key of a limit is told from the workflow's arguments, whatever the function calls them."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest

import standfast as sf
from standfast.errors import WorkflowConcurrencyLimitExceededError


async def waits(ctx: sf.Context, order: dict[str, str], note: str = "") -> None:
    """Wait for good."""
    del order, note
    await ctx.wait_signal("never")


@pytest.mark.parametrize("key", [lambda o, *_: o["customer"], lambda order, note="": order["customer"] + note[:0]])
@pytest.mark.parametrize("args", [({"customer": "ann"},), ({"customer": "ann"}, "soon")])
async def test_arguments_are_given_by_their_places(key: Any, args: tuple[Any, ...]) -> None:
    """A key function need not use the names of the workflow's parameters."""
    workflow = sf.workflow(concurrency=sf.Limit(1, key=key))(waits)
    async with sf.Engine("memory://", workflows=[workflow]) as engine:
        await engine.start(workflow, *args)

        with pytest.raises(WorkflowConcurrencyLimitExceededError) as refused:
            await engine.start(workflow, *args)

    assert refused.value.partition_key == "ann"


async def test_a_function_without_names_can_tell_the_key() -> None:
    """Functions of the standard library that take their argument by place only do."""
    workflow = sf.workflow(concurrency=sf.Limit(1, key=itemgetter("customer")))(waits)
    async with sf.Engine("memory://", workflows=[workflow]) as engine:
        run = await engine.start(workflow, {"customer": "ann"})

        assert (await run.info()).lines == ("ann",)
