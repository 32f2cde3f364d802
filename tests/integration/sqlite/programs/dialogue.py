"""What every program here shares: lines to and from the test that started it, and the keys they use."""

from __future__ import annotations

import os
import sys
from typing import Final

from standfast.keys import RecordKey

ARGUMENTS: Final = sys.argv[1:]


def say(*words: object) -> None:
    """Tell the test one line, at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def told() -> list[str]:
    """Wait for a line from the test and return its words; none when it will say no more."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            return []
        line += more
    return line.decode().split()


def key(*parts: object) -> RecordKey:
    """Return a key in the namespace that all programs share."""
    return RecordKey("test", *map(str, parts))
