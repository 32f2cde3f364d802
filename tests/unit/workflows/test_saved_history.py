"""A run outside of its store: what is masked in it does not keep it from being replayed."""

from __future__ import annotations

import standfast as sf
from standfast.testing.workflows import load_history, replay_history
from standfast.workflows.saved_history import read_saved


@sf.step
async def charge(card: str) -> str:
    """Charge a card."""
    return f"paid with {card}"


@sf.workflow
async def checkout(ctx: sf.Context, card: str) -> str:
    """Charge a card."""
    return await ctx.step("charge", charge, card)


async def test_a_saved_run_is_what_the_test_kit_replays() -> None:
    """One layout for files, tests and the dashboard."""
    async with sf.Engine("memory://", workflows=[checkout]) as engine:
        await (await engine.start(checkout, "4711", id="r1")).result(timeout="10s")
        saved = await read_saved(engine.space, "r1")
    assert load_history(saved.as_json()).as_json() == saved.as_json()
    assert saved.masked(lambda value: value) is saved


async def test_a_masked_run_forgets_which_arguments_its_steps_had() -> None:
    """They would be others in a replay, which would look like changed code."""
    async with sf.Engine("memory://", workflows=[checkout]) as engine:
        await (await engine.start(checkout, "4711", id="r1")).result(timeout="10s")
        saved = await read_saved(engine.space, "r1")

    def mask(value: object) -> object:
        return dict.fromkeys(value, "***") if isinstance(value, dict) else "paid"

    masked = saved.masked(mask)
    assert b"4711" not in masked.as_json()
    assert {event.digest for event in masked.events} == {""}
    assert (await replay_history(checkout, masked.as_json())).result == "paid"
