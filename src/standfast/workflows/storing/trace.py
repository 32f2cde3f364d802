"""Where an exception was raised, as the frames of the user's own code: the last one is the line that raised.

Frames of Standfast are left out. Frames of libraries below the last line of the user are folded into it, so that a deep
library does not push the user's line out. A trace names files, lines and functions, and never a value.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from itertools import dropwhile
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final

from standfast.masking import mask_message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    Place: TypeAlias = tuple[FrameType, int]

MOST_FRAMES: Final = 10
_MAX_LINE: Final = 190  # so that as many lines fit into a message
_HERE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep  # noqa: PTH100, PTH120 -- compared with the text of code objects
_TESTING: Final = f"{_HERE}testing{os.sep}"
_STANDARD: Final = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")


@final
class TraceNote(str):
    """A note on a restored exception that says where it was raised; a traceback shows it below the message."""

    __slots__ = ()

    @classmethod
    def of(cls, trace: str) -> TraceNote:
        """Return the note for a trace."""
        return cls("raised at\n" + "\n".join(f"  {line}" for line in trace.splitlines()))

    @property
    def trace(self) -> str:
        """The trace that it was made of."""
        return "\n".join(line.strip() for line in self.splitlines()[1:])


def add_trace(error: BaseException, trace: str) -> None:
    """Let an exception show where it was raised, in another process or at another time."""
    notes: object = error.__dict__.setdefault("__notes__", []) if trace else None  # a frozen class refuses add_note
    if isinstance(notes, list):
        cast("list[str]", notes).append(TraceNote.of(trace))


def is_trace(note: object) -> bool:
    """Return True if a note of an exception was added by :func:`add_trace`."""
    return isinstance(note, TraceNote)


def trace_of(error: BaseException, carried: str = "") -> str:
    """Return where an exception was raised, the innermost last: its own frames, then those that it brings along.

    Args:
        error: What was raised.
        carried: The trace that it brings along, if it has no note that says so.
    """
    carried = carried or next((note.trace for note in _notes(error) if isinstance(note, TraceNote)), "")
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [*_own_lines(frames), *carried.splitlines()][-MOST_FRAMES:]
    if not lines and not type(error).__module__.startswith("standfast."):  # it comes from Standfast, and should not
        lines = [_line(place) for place in frames[-MOST_FRAMES:]]
    return mask_message("\n".join(line[-_MAX_LINE:] for line in lines))


def _notes(error: BaseException) -> Iterable[object]:
    notes: object = getattr(error, "__notes__", ())
    return cast("list[object]", notes) if isinstance(notes, list) else ()


def _own_lines(frames: list[Place]) -> list[str]:
    """Return the lines of the user's own frames, with what is below the last of them folded into it."""
    own = _own(frames)
    if not own:
        return []
    lines = [_line(place) for place in own]
    below = [
        place for place in dropwhile(lambda place: place is not own[-1], frames) if not _is_standfast(_file(place))
    ]
    if len(below) > 1:
        lines[-1] = f"{_line(below[0])} (raised in {_line(below[-1])})"
    return lines


def _own(frames: list[Place]) -> list[Place]:
    """Return the frames of the user's code.

    That is what is neither installed, nor of Python, nor of Standfast. An application that is itself installed is known
    by its outermost frame.
    """
    foreign = [place for place in frames if not _is_standfast(_file(place)) and not _is_python(_file(place))]
    if here := [place for place in foreign if not _INSTALLED.search(_file(place))]:
        return here
    package = _package(foreign[0]) if foreign else ""
    return [place for place in foreign if _package(place) == package]


def _package(place: Place) -> str:
    found = _INSTALLED.search(_file(place))
    return found[1] if found else ""


def _file(place: Place) -> str:
    return place[0].f_code.co_filename


def _is_standfast(file: str) -> bool:
    return file.startswith(_HERE) and not file.startswith(_TESTING)


def _is_python(file: str) -> bool:
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and not _INSTALLED.search(file))


def _line(place: Place) -> str:
    frame, line = place
    return f"{_short(_file(place))}:{line} in {frame.f_code.co_qualname}"


def _short(path: str) -> str:
    """Return the end of a path, without what is particular to one machine."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])
