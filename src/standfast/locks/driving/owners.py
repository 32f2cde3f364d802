"""Owners: for whom a lock is held, in the eyes of deadlock detection.

By default that is the task. Its name is the same in every space of the process, so that a circle through two of them
is found, and unlike that of any task of another process.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from typing import Any, Final
from weakref import WeakKeyDictionary

from standfast.ids import new_id
from standfast.stores.forks import run_in_forked_child

_names: Final[WeakKeyDictionary[asyncio.Task[Any], str]] = WeakKeyDictionary()
_held: Final[Counter[str]] = Counter()
_process = ""


def owner_of_task() -> str:
    """Return a name for the task that runs now: for people to find, and unlike any other."""
    task = asyncio.current_task()
    name = None if task is None else _names.get(task)
    if name is None:
        shown = "" if task is None else task.get_name()[:60]
        name = f"{_here()}/{''.join(each for each in shown if each.isprintable())}#{new_id()[-6:]}{len(_names):x}"
        if task is not None:
            _names[task] = name
    return name


def _here() -> str:
    global _process  # noqa: PLW0603 -- found out when it is first needed, and anew in a forked child
    if not _process:
        _process = f"{socket.gethostname()[:60]}/{os.getpid()}"
    return _process


def note_taken(owner: str) -> None:
    """Note that an owner holds one more lock."""
    _held[owner] += 1


def note_given_back(owner: str) -> None:
    """Note that an owner holds one lock less."""
    _held[owner] -= 1
    if _held[owner] <= 0:
        del _held[owner]


def holds_something(owner: str) -> bool:
    """Tell whether an owner holds any lock, as far as this process knows."""
    return owner in _held


def _start_anew() -> None:
    global _process  # noqa: PLW0603 -- a forked child has another number, and holds nothing
    _process = ""
    _held.clear()
    _names.clear()


run_in_forked_child(_start_anew)
