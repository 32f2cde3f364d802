"""Threads of a plain program share a lock, a counter and a limit, without an event loop in sight."""

from __future__ import annotations

import threading
from pathlib import Path

from standfast import blocking
from standfast.errors import ReentryError

BALANCE = Path("balance.txt")


def deposit(space: blocking.Space) -> None:
    """Add one to a number in a file, read and written apart."""
    with space.mutex("balance").hold(timeout="30s") as hold:
        balance = int(BALANCE.read_text())
        hold.check()  # a thread cannot be cancelled, so it asks whether it still holds
        BALANCE.write_text(str(balance + 1))
    space.state.shared("deposits", type=int, initial=0).increment()


def main() -> None:
    """Let eight threads deposit at the same time."""
    BALANCE.write_text("0")
    with blocking.open("sqlite:///standfast.db") as space:
        threads = [threading.Thread(target=deposit, args=(space,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("the balance is", BALANCE.read_text())
        print("after", space.state.shared("deposits", type=int).get(), "deposits")

        try:
            with space.mutex("balance").hold(), space.mutex("balance").hold():
                pass
        except ReentryError:
            print("one thread cannot take it twice")


main()

# Output:
# the balance is 8
# after 8 deposits
# one thread cannot take it twice
