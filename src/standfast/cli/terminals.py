"""How a command shares the terminal with us, so that what is typed there works as usual."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final, Literal, TypeAlias, final

Arrangement: TypeAlias = Literal["terminal", "shared", "apart"]
"""How the command stands to the terminal.

``terminal``: it gets a process group of its own, and the terminal. ``shared``: it stays in our group, in a script or a
pipeline, and the terminal's signals reach it by themselves. ``apart``: there is no terminal, or we are in the
background; it gets a group of its own.
"""


def arrange() -> Arrangement:
    """Decide how the next command stands to the terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return "apart"
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return "apart"
    except OSError:
        return "apart"
    finally:
        os.close(terminal)
    is_alone = os.getpgrp() == os.getpid() and all(os.isatty(descriptor) for descriptor in range(3))
    return "terminal" if is_alone else "shared"


@final
class Foreground:
    """The right to be typed to, handed to a command and taken back."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.is_ours_to_give: Final = arrangement == "terminal"

    def take_back(self) -> None:
        """Become the foreground again."""
        self._set(os.getpgrp())

    def give(self, group: int) -> None:
        """Let another group be the foreground, if we are."""
        if self.is_ours_to_give and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
            self._set(group)

    def _set(self, group: int) -> None:
        if not self.is_ours_to_give:
            return
        # Whoever is not in the foreground is stopped for this, unless it will not hear of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(0, group)
        except OSError:  # the terminal is gone
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
