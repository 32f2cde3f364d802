"""Who calls, and from where, told as cheaply as the interpreter can.

``here()`` names the place that an exclusion is bound to, ``current_task(loop)`` the task that runs there now. They
sit on the path of every hold, where a nanosecond is worth a comment.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    here: Callable[[], object]
    current_task: Callable[[asyncio.AbstractEventLoop | None], asyncio.Task[Any] | None]

Task: TypeAlias = "asyncio.Task[Any]"

running_loop = asyncio._get_running_loop  # noqa: SLF001 -- in asyncio's __all__; tells None instead of raising

if sys.version_info >= (3, 12):
    here = running_loop
    current_task = asyncio.current_task
else:
    # In 3.11 finding the running loop makes a system call, and current_task is Python around this dictionary. A
    # thread that is not the loop's own is told apart by its id; another loop of the same thread has no task here.
    here = threading.get_ident
    current_task = vars(asyncio.tasks)["_current_tasks"].get


def site(code: CodeType, offset: int) -> str:
    """Return ``file:line`` of the instruction at ``offset``."""
    lines = (line for start, end, line in code.co_lines() if start <= offset < end and line is not None)
    return f"{code.co_filename}:{next(lines, code.co_firstlineno)}"
