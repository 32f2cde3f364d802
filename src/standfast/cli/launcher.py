"""Become a command: a step between ``standfast run`` and the command, in a process of its own.

What has to be done between fork and exec is done here, by a fresh interpreter, since code of a process with threads
cannot be relied on there. It loads nothing but the standard library, and is started as a file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG

TAMED: Final = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""What Python handles in its own way, and a command should find as usual."""


def die_with(parent: int) -> None:
    """Ask to be killed when the parent dies, where the platform can do that; end at once if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(CANNOT_RUN)


def take_terminal() -> None:
    """Become the foreground of the terminal, so that what is typed there reaches this process."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(0, os.getpgrp())
    except OSError:  # the terminal is gone; the command will find out
        return
    finally:
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)


def main() -> None:
    """Do it: ``launcher.py PARENT terminal|none COMMAND...``."""
    parent, terminal, *command = sys.argv[1:]
    die_with(int(parent))
    if terminal == "terminal":
        take_terminal()
    for number in TAMED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], command)  # noqa: S606 -- that is what it is for, and no shell is involved
    except OSError as problem:
        message = f"standfast: {command[0]} cannot be run: {problem.strerror}\n"
        os.write(2, message.encode(errors="backslashreplace"))
        os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else CANNOT_RUN)


if __name__ == "__main__":
    main()
