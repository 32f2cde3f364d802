"""Clocks that are wrong: off, jumping while a process runs, or too fast."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, final

from tests import services

if TYPE_CHECKING:
    from pathlib import Path


def off_by(offset: str) -> dict[str, str]:
    """Return the environment of a process whose time of day is off: ``+3600s``. Its monotonic clock is right."""
    return services.faketime(offset)


def at_rate(rate: float) -> dict[str, str]:
    """Return the environment of a process all of whose clocks run too fast, or too slowly: 1.1 is ten percent fast."""
    return services.faketime(f"+0 x{rate}") | {"FAKETIME_DONT_FAKE_MONOTONIC": "0"}


@final
class Dial:
    """The time of day of a process or a server, turned while it runs."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._offset = 0
        self.turn("+0")

    def turn(self, offset: str) -> None:
        """Set the clock to so much more or less than the right time: ``-3600s``."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{offset}\n")
        fresh.replace(self._path)

    def step(self, seconds: int) -> None:
        """Set the clock forward, or back, by so much."""
        self._offset += seconds
        self.turn(f"{self._offset:+}s")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of whoever goes by it."""
        found = services.faketime("+0")
        del found["FAKETIME"]
        return found | {"FAKETIME_TIMESTAMP_FILE": os.fspath(self._path), "FAKETIME_NO_CACHE": "1"}
