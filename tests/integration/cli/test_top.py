"""``standfast top`` in a real terminal: what is drawn, when it is drawn again, and how it is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from tests.integration.cli.tmux import Tmux

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.heavy  # real processes: once, on the default interpreter


@sf.workflow
async def fails(ctx: sf.Context) -> None:
    """Fail."""
    del ctx
    raise ValueError("no stock")


@sf.workflow
async def waits(ctx: sf.Context) -> None:
    """Wait for something that does not come."""
    await ctx.sleep("1 day")


@pytest.fixture
def terminal(tmp_path: Path, url: str) -> Iterator[Tmux]:
    """A terminal that is closed after the test."""
    opened = Tmux(tmp_path, url)
    yield opened
    opened.close()


async def test_top_shows_what_happens_and_quits_by_a_key(terminal: Tmux, url: str) -> None:
    """It is drawn again when something happens; q ends it and leaves the terminal as it was."""
    async with sf.Engine(url, workflows=[fails, waits]) as engine:
        terminal.run("top", width=110, height=30)
        await terminal.show("standfast top", "nothing needs a person", "fails, waits")
        await engine.start(waits)
        await terminal.show("1 suspended")
        await engine.start(fails, id="order-7")
        await terminal.show("needs a person", "1 run failed in the last 24 h", "1 failed")
        async with engine.space.mutex("stock").hold(owner="ann"):
            terminal.type("x")  # any other key does nothing
            waiting = engine.space.semaphore("seats", permits=1)
            async with waiting.hold():
                await terminal.show("standfast top")
        terminal.type("q")
        lines = await terminal.show("ended with 0")

    assert not any("standfast top" in line for line in lines)  # it has drawn on a screen of its own


async def test_top_fits_into_a_window_that_is_made_smaller(terminal: Tmux, url: str) -> None:
    """Lines are cut, not folded: the title and the last line are still there."""
    async with sf.Engine(url, workflows=[fails, waits]):
        terminal.run("top", width=120, height=30)
        await terminal.show("round trip", "q quits")
        terminal.resize(60, 20)
        lines = await terminal.show("q quits", "\u2026")
        assert lines[0].startswith("standfast top")
        assert max(map(len, lines)) <= 60
        terminal.type("q")
        await terminal.show("ended with 0")


async def test_top_is_ended_by_control_c_too(terminal: Tmux, url: str) -> None:
    """Ctrl-C ends it as q does, without a traceback."""
    async with sf.Engine(url, workflows=[waits]):
        terminal.run("top", width=100, height=20)
        await terminal.show("q quits")
        terminal.type("C-c")
        lines = await terminal.show("ended with")
    assert not any("Traceback" in line for line in lines)


async def test_one_screen_is_printed_at_once(terminal: Tmux, url: str) -> None:
    """``--once`` draws and ends."""
    async with sf.Engine(url, workflows=[waits]):
        terminal.run("top", "--once", width=100, height=40)
        lines = await terminal.show("q quits", "ended with 0")
    assert any("nothing needs a person" in line for line in lines)
