"""Ids of runs that users choose: none can be taken for one that Standfast makes."""

from __future__ import annotations

import pytest

import standfast as sf
from standfast.errors import DeclarationError, InvalidChangeError


@sf.workflow
async def count_down(ctx: sf.Context, number: int) -> int:
    """Go on as a new run until nothing is left."""
    if number:
        await ctx.continue_as_new(number - 1)
    return number


@pytest.mark.parametrize("run_id", ["order-7~2", "~1", "a~b~30"])
async def test_an_id_that_a_run_could_go_on_under_is_refused(run_id: str) -> None:
    """The run ``order-7`` goes on as ``order-7~2``; somebody else's run of that name would be in its way for good."""
    async with sf.Engine("memory://", workflows=[count_down]) as engine:
        with pytest.raises(DeclarationError, match="~"):
            await engine.start(count_down, 0, id=run_id)


@pytest.mark.parametrize("run_id", ["order~seven", "~", "7~", "7~²"])
async def test_a_tilde_alone_is_fine(run_id: str) -> None:
    """Only a number after it says that a run is the next one of another."""
    async with sf.Engine("memory://", workflows=[count_down]) as engine:
        assert await (await engine.start(count_down, 2, id=run_id)).result(timeout=10) == 0


async def test_an_id_that_no_key_has_room_for_is_refused_before_anything_is_written() -> None:
    """Names of 400 bytes each leave some 150 for the id: the key of the grant of its worker is the longest."""
    name, fits, too_long = "\N{MATHEMATICAL BOLD CAPITAL A}" * 100, "x" * 120, "x" * 240
    async with (
        sf.open("memory://", namespace=name, tenant=name) as space,
        sf.Engine(space, workflows=[count_down]) as engine,
    ):
        with pytest.raises(InvalidChangeError, match="1,000 bytes"):
            await engine.start(count_down, 0, id=too_long)
        assert not (await engine.list()).runs
        assert await (await engine.start(count_down, 0, id=fits)).result(timeout=10) == 0
