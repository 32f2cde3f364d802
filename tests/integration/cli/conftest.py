"""What the tests of the command share: a store, and processes that are ended after the test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.integration.cli.programs import PATIENCE, Program
from tests.integration.cli.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Start(Protocol):
    """Starts ``standfast`` with some arguments."""

    def __call__(self, *arguments: str, **options: Any) -> Program:
        """Start it."""
        ...


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The store of this test."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Start processes that are ended after the test."""
    programs: list[Program] = []

    def begin(*arguments: str, **options: Any) -> Program:
        programs.append(Program(url, *arguments, **options))
        return programs[-1]

    yield begin
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait(PATIENCE)
        for stream in (program.process.stdin, program.process.stdout, program.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal that is closed after the test."""
    opened = Terminal()
    yield opened
    os.close(opened.ours)
    os.close(opened.theirs)
