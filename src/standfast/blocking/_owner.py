"""For whom a lock is held, in the eyes of deadlock detection: here that is the thread."""

from __future__ import annotations

import os
import socket
import threading
from typing import Final

from standfast.ids import new_id
from standfast.stores.liveness import ForkGuard

_mine: Final = threading.local()


def owner_of_thread() -> str:
    """Return a name for the thread that runs now: for people to find, and unlike any other."""
    guard: ForkGuard | None = getattr(_mine, "guard", None)
    if guard is None or guard.crossed:
        shown = "".join(each for each in threading.current_thread().name[:60] if each.isprintable())
        _mine.name = f"{socket.gethostname()[:60]}/{os.getpid()}/{shown}#{new_id()[-8:]}"
        _mine.guard = ForkGuard(_mine.name)
    name: str = _mine.name
    return name
