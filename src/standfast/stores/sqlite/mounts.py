"""Which file system a folder lies on, as Linux tells it."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

_FIELDS: Final = 5
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def filesystem_of(folder: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """Return the type of the file system that ``folder`` lies on, where the platform tells.

    The folder's device finds the mount. Where it is not in the table, as with some subvolumes and overlays, the
    deepest mount point above the folder does.
    """
    if sys.platform != "linux":
        return None
    device = os.stat(folder).st_dev  # noqa: PTH116 -- plain text throughout this package
    wanted = f"{os.major(device)}:{os.minor(device)}"
    deepest, found = -1, None
    for number, point, kind in _table(mounts):
        if number == wanted:
            return kind
        if _lies_below(folder, point) and len(point) >= deepest:  # of two on the same point the later one is on top
            deepest, found = len(point), kind
    return found


def is_mounted_alone(path: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Tell whether a single file is a mount of its own, as when a container is given one file of its host."""
    return sys.platform == "linux" and any(point == path for _, point, _ in _table(mounts))


def _table(mounts: str) -> list[tuple[str, str, str]]:
    """Return device, mount point and type of every mount that can be understood."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape", newline="\n") as table:  # noqa: PTH123 -- see above
            lines = [
                (before.split(" "), after.split()) for before, _, after in (line.partition(" - ") for line in table)
            ]
    except OSError:
        return []
    return [
        (fields[2], _unescaped(fields[4]), kind[0])
        for fields, kind in lines
        if len(fields) >= _FIELDS and len(kind) > 0
    ]


def _unescaped(point: str) -> str:
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 8)), point)


def _lies_below(folder: str, point: str) -> bool:
    return folder == point or folder.startswith(point.rstrip("/") + "/")
