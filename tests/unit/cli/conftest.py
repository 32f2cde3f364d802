"""A store in a file with locks in use, and the command to ask about them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import pytest
from click.testing import CliRunner

import standfast as sf
from standfast.cli import application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from click.testing import Result


class Ask(Protocol):
    """Runs the command with some arguments, beside the loop of the test."""

    async def __call__(self, *arguments: str, typed: str = "", color: bool = False, **environment: str) -> Result:
        """Run it."""
        ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The store of this test."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def space(url: str) -> AsyncIterator[sf.Space]:
    """The default space of that store."""
    async with sf.open(url) as opened:
        yield opened


@pytest.fixture
def ask(url: str) -> Ask:
    """Ask the command about that store."""

    async def run(*arguments: str, typed: str = "", color: bool = False, **environment: str) -> Result:
        env = {"STANDFAST_STORE": url, "NO_COLOR": None, **environment}
        return await asyncio.to_thread(
            CliRunner().invoke, application, arguments, input=typed, color=color, env=env, prog_name="standfast"
        )

    return run
