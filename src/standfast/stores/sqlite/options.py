"""What can be chosen for an SQLite store, in its URL or in code."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Options(Struct, frozen=True):
    """Settings of one handle.

    Attributes:
        busy_seconds: How long a commit waits for its turn before it is refused (``?busy=5s``).
        network: ``"allow"`` opens a file on a network file system all the same (``?network=allow``).
        others: ``"allow"`` opens a file that other users can change (``?others=allow``).
        commits: Where commits run: on the loop when that is quick, or always on the loop or a thread.
        folder: ``"create"`` makes the folders above the file if they are missing (``?folder=create``).
        hints: ``"machine"`` rings other processes; ``"process"`` keeps hints inside this one.
    """

    busy_seconds: float = 5.0
    network: Literal["refuse", "allow"] = "refuse"
    others: Literal["refuse", "allow"] = "refuse"
    commits: Literal["auto", "loop", "thread"] = "auto"
    hints: Literal["machine", "process"] = "machine"
    folder: Literal["refuse", "create"] = "refuse"
