"""The terminal: colours, a region that is redrawn in place, and plain lines where there is no terminal."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self, TextIO

NARROWEST: Final = 80
WIDEST: Final = 100
COLOURS: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Glyphs:
    """The characters that pictures are made of."""

    hold: str = "█"
    wait: str = "·"
    kept: str = "✔"
    broken: str = "✘"
    steps: str = "▁▂▃▄▅▆▇█"
    cut: str = "…"


PLAIN_GLYPHS: Final = Glyphs("#", ".", "ok", "NO", "_.-=+*#@", "..")


class Screen:
    """Where the scenes draw. On a terminal :meth:`draw` redraws in place; elsewhere only final pictures are printed."""

    def __init__(self, out: TextIO, *, silent: bool = False) -> None:
        self._out, self._silent = out, silent
        self.width = min(max(shutil.get_terminal_size((NARROWEST, 24)).columns, NARROWEST), WIDEST)
        self.live = out.isatty() and os.environ.get("TERM") != "dumb" and not silent
        self._colours = self.live and not os.environ.get("NO_COLOR")
        unicode = (out.encoding or "").lower().replace("-", "").startswith("utf")
        self.glyphs = Glyphs() if unicode else PLAIN_GLYPHS
        self._height = 0

    def __enter__(self) -> Self:
        self._write("\x1b[?25l" if self.live else "")  # without the cursor, which would jump about
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("\x1b[?25h" if self.live else "")

    def paint(self, text: str, *styles: str) -> str:
        """Return text in some styles, if the terminal has colours and the user wants them."""
        if not self._colours or not styles:
            return text
        return f"\x1b[{';'.join(COLOURS[style] for style in styles)}m{text}\x1b[0m"

    def say(self, *lines: str) -> None:
        """Print lines that stay."""
        self._write("".join(f"{self._fit(line)}\n" for line in lines))

    def say_whole(self, line: str) -> None:
        """Print a line that stays, however long it is: an address is of no use in parts."""
        self._write(f"{line}\n")

    def note(self, line: str) -> None:
        """Print an event as a line, where there is no live picture to show it."""
        if not self.live:
            self.say(f"   {line}")

    def draw(self, lines: Sequence[str]) -> None:
        """Draw a picture over the one before."""
        if self.live:
            up = f"\x1b[{self._height}A" if self._height else ""
            self._write(up + "".join(f"\r{self._fit(line)}\x1b[K\n" for line in lines) + "\x1b[J")
            self._height = len(lines)

    def keep(self, lines: Sequence[str]) -> None:
        """Draw a picture for the last time, and go on below it."""
        self.draw(lines)
        if not self.live:
            self.say(*lines)
        self._height = 0

    def _fit(self, line: str) -> str:
        """Cut a line to the width of the terminal, counting only what is seen."""
        if visible_length(line) <= self.width:
            return line
        shown, room = "", self.width
        for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
            shown += piece if _STYLE.fullmatch(piece) else piece[: max(room, 0)]
            room -= 0 if _STYLE.fullmatch(piece) else len(piece)
        return shown

    def _write(self, text: str) -> None:
        if not self._silent:
            self._out.write(text)
            self._out.flush()


def visible_length(text: str) -> int:
    """Return how many columns a text takes."""
    return len(_STYLE.sub("", text))


def padded(text: str, width: int) -> str:
    """Fill a text up to a width, counting only what is seen."""
    return text + " " * (width - visible_length(text))
