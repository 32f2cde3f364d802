"""Opens a blocking space, forks, and lets both use it: ``fork URL HOW``.

HOW is ``os`` or ``multiprocessing``. Each line that is printed is one thing that worked, or the error that it met.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

from standfast import blocking
from standfast.errors import StandfastError, StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)


def attempt(what: str, action: Callable[[], object]) -> None:
    """Say what an action answers, or which error it meets."""
    try:
        say(what, action())
    except StandfastError as problem:
        is_forked = isinstance(problem, StoreClosedError) and "fork" in str(problem)
        say(what, "forked" if is_forked else type(problem).__name__)


def take(mutex: blocking.Mutex) -> bool:
    """Hold a mutex for a moment."""
    with mutex.try_hold() as hold:
        return hold.fence > 0


def child(space: blocking.Space, mutex: blocking.Mutex, hold: blocking.Hold, presence: str) -> None:
    """Be the child: use what was inherited."""
    attempt("child-takes-what-the-parent-holds", lambda: take(mutex))
    attempt("child-takes-another", lambda: take(space.mutex("free")))
    attempt("child-counts", lambda: space.state.shared("count", type=int, initial=0).increment())
    attempt("child-asks-the-parents-hold", lambda: hold.is_lost)
    attempt("child-checks-the-parents-hold", hold.check)
    attempt("child-waits-for-its-loss", lambda: hold.lost.wait(0))
    attempt("child-has-a-presence-of-its-own", lambda: space.presence_name != presence)
    space.close()


def forked(how: str, space: blocking.Space, mutex: blocking.Mutex, hold: blocking.Hold) -> int:
    """Fork and return the child's exit status."""
    presence = space.presence_name
    if how == "os":
        pid = os.fork()
        if not pid:
            child(space, mutex, hold, presence)
            sys.exit(0)  # leaves the parent's block, and runs what is to be run at exit
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("fork").Process(target=child, args=(space, mutex, hold, presence))
    process.start()
    process.join()
    return process.exitcode or 0


def main(url: str, how: str) -> None:
    """Be the parent."""
    with blocking.open(url, lease="10s") as space:
        mutex = space.mutex("held")
        with mutex.hold() as hold:
            say("child-ended", forked(how, space, mutex, hold))
            attempt("parent-still-holds", lambda: not hold.is_lost)
            attempt("parent-counts", lambda: space.state.shared("count", type=int, initial=0).increment())
        attempt("parent-takes-it-again", lambda: take(mutex))
    say("parent-ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
