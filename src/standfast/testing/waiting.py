"""Where a task waits, in words: what a deadlock report is made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from types import FrameType


def where_it_waits(task: asyncio.Task[Any]) -> str:
    """Say which calls a task is in, from its coroutine down to what it awaits.

    For example: ``Task-3: serve (app.py:12) > hold (locks.py:80)``.
    """
    calls = [f"{frame.f_code.co_qualname} ({_place(frame)})" for frame in _frames(task.get_coro())]
    return f"{task.get_name()}: {' > '.join(calls) or 'not started'}"


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 -- a name is not a path


def _frames(awaited: object) -> Iterator[FrameType]:
    """Follow a suspended coroutine through everything that it awaits."""
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            yield frame
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(value: object, *names: str) -> Any:  # noqa: ANN401 -- coroutines and generators have no common type
    return next((found for name in names if (found := getattr(value, name, None)) is not None), None)
