"""A terminal of our own, and ``standfast`` alone on it."""

from __future__ import annotations

import os
import pty
import select
from typing import TYPE_CHECKING, final

from tests.integration.cli.programs import read_some

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Start
    from tests.integration.cli.programs import Program

CONTROL_C, CONTROL_D, CONTROL_Z = b"\x03", b"\x04", b"\x1a"


@final
class Terminal:
    """A terminal of our own."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.shown: bytes = b""

    def type(self, keys: bytes) -> None:
        """Press some keys."""
        os.write(self.ours, keys)

    def type_until(self, keys: bytes, words: bytes) -> None:
        """Press some keys, again if nothing comes: Python misses Ctrl-C in the instant before it begins to read."""
        while words not in self.shown:
            self.type(keys)
            while words not in self.shown and select.select([self.ours], [], [], 1.0)[0]:
                self.shown += read_some(self.ours)

    def read_until(self, words: bytes) -> None:
        """Return when some words were shown."""
        while words not in self.shown:
            more = read_some(self.ours)
            assert more, self.shown
            self.shown += more


def begin(start: Start, terminal: Terminal, *arguments: str) -> Program:
    """Start ``standfast`` alone on a terminal."""
    side = terminal.theirs
    return start(*arguments, stdin=side, stdout=side, stderr=side, start_new_session=True, owns_terminal=True)
