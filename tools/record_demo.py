"""Run the demonstration on a terminal of our own and draw what it showed: ``python tools/record_demo.py``.

Writes ``docs/_static/demo.svg``. The terminal is just big enough for the few codes that the demonstration uses.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "_static" / "demo.svg"
COLUMNS, ROWS = 84, 60
CELL_WIDTH, CELL_HEIGHT, MARGIN, TOP = 8.4, 18, 16, 38
CODE = re.compile(r"\x1b\[(?P<given>[?0-9;]*)(?P<letter>[A-Za-z])")
BACKGROUND, FOREGROUND = "#16181d", "#d8dce4"
COLOURS = {"31": "#f2777a", "32": "#7bd88f", "33": "#f5c76a", "34": "#6fa8ff", "35": "#d48cf0", "36": "#5fd3e0"}
DIM = "#7d8494"
STEPS = "▁▂▃▄▅▆▇█"


class Cell(NamedTuple):
    """A character and the styles it is shown in."""

    character: str
    styles: frozenset[str]


class Terminal:
    """A terminal that knows lines, colours and going up."""

    def __init__(self) -> None:
        self.lines: list[list[Cell]] = [[]]
        self._row = 0
        self._styles: frozenset[str] = frozenset()

    def feed(self, text: str) -> None:
        """Show some output."""
        end = 0
        for code in CODE.finditer(text):
            self._print(text[end : code.start()])
            self._obey(code["letter"], code["given"])
            end = code.end()
        self._print(text[end:])

    def _obey(self, letter: str, given: str) -> None:
        if letter == "A":
            self._row -= int(given or 1)
        elif letter == "J":
            del self.lines[self._row + 1 :]
        elif letter == "m":
            self._styles = frozenset() if given in {"", "0"} else self._styles | set(given.split(";"))

    def _print(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append([])
            elif character == "\r":
                self._column = 0
            else:
                self._put(Cell(character, self._styles))

    _column = 0

    def _put(self, cell: Cell) -> None:
        line = self.lines[self._row]
        if self._column == 0:  # the demonstration always writes whole lines
            line.clear()
        line.append(cell)
        self._column += 1


def record() -> str:
    """Run the demonstration on a terminal and return everything that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    process = subprocess.Popen(command, stdout=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    written = b""
    while chunk := read(ours):
        written += chunk
    if process.wait() != 0:
        sys.exit("the demonstration found a promise broken; nothing was drawn")
    return written.decode()


def read(descriptor: int) -> bytes:
    """Read on; nothing once the other side has closed the terminal."""
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""


def drawn(lines: list[list[Cell]]) -> str:
    """Draw lines as a picture of a terminal."""
    width, height = round(COLUMNS * CELL_WIDTH + 2 * MARGIN), TOP + len(lines) * CELL_HEIGHT + MARGIN
    rows = "\n".join(piece for number, line in enumerate(lines) for piece in pieces(line, TOP + number * CELL_HEIGHT))
    lights = "".join(f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="#3a3f4b"/>' for n in range(3))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>What make demo shows</title>
<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>
{lights}
<text x="{width // 2}" y="23" text-anchor="middle" font-size="13" font-family="sans-serif" fill="{DIM}">make demo</text>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14"
 fill="{FOREGROUND}" xml:space="preserve">
{rows}
</g>
</svg>
"""


def pieces(line: list[Cell], y: int) -> list[str]:
    """Draw the runs of a line: blocks as boxes, so that no font leaves gaps between them, and the rest as text."""
    found: list[str] = []
    column = 0
    for (styles, is_block), run in groupby(line, key=lambda cell: (cell.styles, cell.character in STEPS)):
        text = "".join(cell.character for cell in run)
        if is_block:
            found += boxes(text, column, y, colour(styles))
        elif text.strip():
            found.append(label(text, column, y, styles))
        column += len(text)
    return found


def boxes(text: str, column: int, y: int, fill: str) -> list[str]:
    """Draw block characters; a run of the same height is one box."""
    found: list[str] = []
    for character, run in groupby(text):
        length = len(list(run))
        height = round((STEPS.index(character) + 1) / len(STEPS) * (CELL_HEIGHT - 4), 1)
        x, top = round(MARGIN + column * CELL_WIDTH, 1), y + CELL_HEIGHT - 2 - height
        width = round(length * CELL_WIDTH, 1)
        found.append(f'<rect x="{x}" y="{top}" width="{width}" height="{height}" fill="{fill}"/>')
        column += length
    return found


def label(text: str, column: int, y: int, styles: frozenset[str]) -> str:
    """Draw text, stretched to its columns whatever font is used."""
    lead = len(text) - len(text.lstrip())
    text = text.strip()
    x, length = round(MARGIN + (column + lead) * CELL_WIDTH, 1), round(len(text) * CELL_WIDTH, 1)
    weight = ' font-weight="bold"' if "1" in styles else ""
    fill = "" if colour(styles) == FOREGROUND else f' fill="{colour(styles)}"'
    place = f'x="{x}" y="{y + CELL_HEIGHT - 5}" textLength="{length}"'
    return f"<text {place}{weight}{fill}>{html.escape(text)}</text>"


def colour(styles: frozenset[str]) -> str:
    """Return the colour of some styles."""
    return next((COLOURS[style] for style in styles if style in COLOURS), DIM if "2" in styles else FOREGROUND)


def main() -> None:
    """Record, draw, write."""
    terminal = Terminal()
    terminal.feed(record())
    while terminal.lines and not terminal.lines[-1]:
        terminal.lines.pop()
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(drawn(terminal.lines), encoding="utf-8")
    print(TARGET.relative_to(ROOT))


if __name__ == "__main__":
    main()
