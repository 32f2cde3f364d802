"""Histories that were recorded once are replayed for ever. Their files are never edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pytest

import standfast as sf
from standfast.errors import DeclarationError, DecodeError, NondeterminismError
from standfast.testing.workflows import WorkflowEnvironment, load_history, replay_history, save_history
from tests.replay.golden import FOLDER, WORKFLOWS, double

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.workflows.definition import Workflow

HISTORIES: Final = sorted(FOLDER.glob("*.json"))
each_history = pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)


@each_history
async def test_a_golden_history_is_replayed(path: Path) -> None:
    """The code fits it, and comes to the result that it came to when it was recorded."""
    saved = load_history(path)
    workflow = WORKFLOWS[saved.header.workflow]
    replayed = await replay_history(workflow, path)
    assert replayed.events == len(saved.events)
    assert replayed.has_ended == saved.state.has_ended
    if saved.state.result:
        assert msgspec.json.decode(workflow.signature.result.pack(replayed.result)) == msgspec.json.decode(
            saved.state.result
        )


def test_the_golden_histories_have_marks_of_every_kind() -> None:
    """Each kind of event that was ever recorded is replayed in a test."""
    kinds = {event.kind for path in HISTORIES for event in load_history(path).events}
    assert kinds >= {
        *("step", "tried", "began", "sleep", "slept", "signal", "waits", "until", "update"),
        *("child", "child_done", "cancelled", "now", "random", "uuid", "patch"),
        *("lock", "held", "released", "went_on", "state", "read", "rate_limiter"),
    }
    assert len(HISTORIES) >= 15


@sf.workflow(name="replayed")
async def original(ctx: sf.Context) -> int:
    """Take two steps."""
    return await ctx.step("a", double, 1) + await ctx.step("b", double, 2)


@sf.workflow(name="replayed")
async def swapped(ctx: sf.Context) -> int:
    """Take them in the other order."""
    return await ctx.step("b", double, 2) + await ctx.step("a", double, 1)


@sf.workflow(name="replayed")
async def shortened(ctx: sf.Context) -> int:
    """Take one of them."""
    return await ctx.step("a", double, 1)


@sf.workflow(name="replayed")
async def lengthened(ctx: sf.Context) -> int:
    """Take one more."""
    return await ctx.step("a", double, 1) + await ctx.step("b", double, 2) + await ctx.step("c", double, 3)


async def saved_history() -> bytes:
    """Return the history of the workflow as it was."""
    async with WorkflowEnvironment([original]) as env:
        run = await env.start(original)
        await env.result(run)
        return await save_history(run)


async def test_a_saved_history_is_replayed_against_the_same_code() -> None:
    """Nothing is executed, and the result is the one that was recorded."""
    assert (await replay_history(original, await saved_history())).result == 6


@pytest.mark.parametrize("changed", [swapped, shortened, lengthened], ids=lambda each: each.__doc__)
async def test_changed_code_does_not_fit_a_saved_history(changed: Workflow[..., int]) -> None:
    """It is found before it is deployed."""
    with pytest.raises(NondeterminismError):
        await replay_history(changed, await saved_history())


async def test_a_history_of_another_workflow_is_refused() -> None:
    """It would fit nothing."""
    with pytest.raises(DeclarationError):
        await replay_history(WORKFLOWS["golden.steps"], await saved_history())


async def test_what_is_no_history_is_refused() -> None:
    """With an error that says so."""
    with pytest.raises(DecodeError):
        await replay_history(original, b"{}")
