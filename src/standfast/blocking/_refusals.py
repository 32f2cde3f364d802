"""Where code must not block, and where it cannot."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from standfast.errors import UsageError

_LIBRARIES: Final = {
    "gevent": ("gevent.monkey", "is_module_patched", ("threading", "thread", "select")),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", ("thread", "select")),
}


def refuse_running_loop(instead: str = "async with standfast.open(...)") -> None:
    """Raise if an event loop runs in this thread: it would stand still. The error says what to use ``instead``."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "standfast.blocking",
        "blocks, and an event loop runs in this thread",
        f"use {instead}, or call it through asyncio.to_thread",
    )


def refuse_green_threads() -> None:
    """Raise if threads were replaced by green ones: the background loop would not run beside them."""
    for library, (home, question, modules) in _LIBRARIES.items():
        is_patched = getattr(sys.modules.get(home), question, None)
        patched = [module for module in modules if is_patched is not None and is_patched(module)]
        if patched:
            workers = "gunicorn --worker-class gthread, celery --pool prefork or threads"
            raise UsageError(
                library,
                f"has replaced the module {patched[0]}, so the background event loop could not run beside this code",
                f"use a worker with real threads ({workers}), or a process without it",
            )
