"""Servers on one store, and the file that they write down in what they do."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, final

import pytest

from tests.integration.cli.programs import PATIENCE, ROOT, Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DESK: Final = "tests.integration.serving.desk:app"


@final
class Servers:
    """Starts servers of the desk."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url, self.ledger = url, ledger
        self._programs: Final[list[Program]] = []

    def start(self, *options: str, seconds: float = 0.01, app: str = DESK) -> tuple[Program, str]:
        """Start one; return it and its address when it serves."""
        os.environ |= {"STANDFAST_TEST_LEDGER": str(self.ledger), "STANDFAST_TEST_SECONDS": str(seconds)}
        program = Program(self._url, "serve", app, "--app-dir", str(ROOT), "--port", "0", *options)
        self._programs.append(program)
        said = program.hear()
        found = re.search(r"at (http://\S+) \(process", said)
        assert found is not None, said
        return program, found[1]

    def lines(self) -> list[tuple[str, str, int, int]]:
        """Return what was written down: what, the session, the number, and the process."""
        text = self.ledger.read_text() if self.ledger.exists() else ""
        return [
            (what, session, int(number), int(process))
            for what, session, number, process in (line.split() for line in text.splitlines())
        ]

    def close(self) -> None:
        """End what is left."""
        for program in self._programs:
            if program.process.poll() is None:
                program.process.kill()
            program.process.communicate(timeout=PATIENCE)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The store of this test."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def servers(url: str, tmp_path: Path) -> Iterator[Servers]:
    """Servers that are ended after the test."""
    found = Servers(url, tmp_path / "ledger")
    yield found
    found.close()
