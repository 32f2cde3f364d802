"""Who waited and who held, drawn over time: one row a task."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from demonstration.screen import padded

if TYPE_CHECKING:
    from demonstration.screen import Screen

NAME_WIDTH: Final = 12
NOTE_WIDTH: Final = 30
MODE_COLOURS: Final = {"pull": "green", "observe": "cyan", "exclusive": "magenta", "": "green"}


@dataclass
class Track:
    """What one task did with a key, and when."""

    name: str
    mode: str = ""
    asked: float | None = None
    entered: float | None = None
    left: float | None = None
    note: str = ""
    fate: str = ""
    colour: str = ""

    def glyph_at(self, moment: float, now: float) -> str:
        """Tell what the task was doing at a moment: hold, wait, or nothing."""
        if self.asked is None or moment < self.asked or moment > (self.left or now):
            return ""
        return "hold" if self.entered is not None and moment >= self.entered else "wait"


@dataclass
class Timeline:
    """Tracks that begin together."""

    seconds: float
    tracks: list[Track]
    began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.began

    def rows(self, screen: Screen) -> list[str]:
        """Draw every track up to now."""
        now = self.now()
        return [self._row(track, now, screen) for track in self.tracks]

    def _row(self, track: Track, now: float, screen: Screen) -> str:
        columns = screen.width - NAME_WIDTH - NOTE_WIDTH - 5
        cells = "".join(self._cell(track, self.seconds * column / columns, now, screen) for column in range(columns))
        name = padded(track.name, NAME_WIDTH)
        return f"   {name}{padded(self._coloured(cells, track, screen), columns)}  {track.note}"

    def _cell(self, track: Track, moment: float, now: float, screen: Screen) -> str:
        glyph = track.glyph_at(moment, now) if moment <= now else ""
        return {"hold": screen.glyphs.hold, "wait": screen.glyphs.wait, "": " "}[glyph]

    def _coloured(self, cells: str, track: Track, screen: Screen) -> str:
        """Colour the time of holding by the mode; what lies before and after stays as it is."""
        mark = screen.glyphs.hold
        if mark not in cells:
            return screen.paint(cells, "dim")
        first, last = cells.index(mark), cells.rindex(mark) + 1
        held = screen.paint(cells[first:last], track.colour or MODE_COLOURS[track.mode])
        return f"{screen.paint(cells[:first], 'dim')}{held}{cells[last:]}"
