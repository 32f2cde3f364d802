"""What asks a process to end, SystemExit and KeyboardInterrupt, when the code of users raises it.

Raised by a step, an action or a function that was handed in, they are a failure of that code like any other: they must
not end the process, and with it every other run and request. A handler of a signal raises them, too, wherever the main
thread happens to be. Then it is the program that is to end, and the code that was interrupted has not failed.
"""

from __future__ import annotations

import functools
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from types import CodeType

EXITS: Final = (SystemExit, KeyboardInterrupt)
"""What asks a process to end."""

FAILURES: Final = (Exception, SystemExit, KeyboardInterrupt)
"""What code of users raises when it fails; :func:`failure_of` says what of it ends the program all the same."""


def failure_of(raised: Exception | SystemExit | KeyboardInterrupt) -> Exception:
    """Return what code of users has raised, as something that ends no program.

    Raises:
        SystemExit, KeyboardInterrupt: A handler of a signal has raised it, so the program is to end.
    """
    if isinstance(raised, Exception):
        return raised
    if is_from_signal(raised):
        raise raised
    return as_failure(raised)


def is_from_signal(problem: SystemExit | KeyboardInterrupt) -> bool:
    """Return True if a handler of a signal has raised it, or may have, and not the code that runs."""
    if threading.current_thread() is not threading.main_thread():
        return False  # Python calls handlers in the main thread only
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    if isinstance(problem, KeyboardInterrupt) and signal.default_int_handler in handlers:
        return True  # it is not written in Python, so a traceback does not show it
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(problem.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = cast("object", handler.func)
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = getattr(handler, "__func__", type(handler).__call__)
    return getattr(handler, "__code__", None)


def as_failure(problem: BaseException) -> RuntimeError:
    """Return an error that says what a function raised, for what means something else to an event loop."""
    error = RuntimeError(f"the function raised {type(problem).__name__}({problem})")
    error.__cause__ = problem
    return error.with_traceback(problem.__traceback__)
