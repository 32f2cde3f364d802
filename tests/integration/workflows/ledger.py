"""What steps themselves write down, in a file outside the store: one line when they begin and one when they end."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import Struct

import standfast as sf
from standfast.clock import monotonic
from standfast.ids import new_id

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE: Final = 40.0
"""How many seconds a healthy worker may take on a busy machine."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One line.

    Attributes:
        what: ``begin`` or ``end`` of an execution, ``kill`` or ``stop`` of a process, ``fault`` of the store,
            or ``event`` with the name of one.
        at: When, by the clock that all processes of a machine share.
        pid: The process.
        key: The idempotency key of the step; of an event, the run.
        attempt: Which attempt of the step.
        fence: The fence with which its run was driven.
        nonce: The execution; it is also part of what the step returns or raises.
        name: The name of an event, or what else there is to say.
    """

    what: str
    at: float
    pid: int
    key: str = ""
    attempt: int = 0
    fence: int = 0
    nonce: str = ""
    name: str = ""


@final
class Ledger:
    """A file that any process appends whole lines to."""

    def __init__(self, path: Path | str) -> None:
        self.path: Final = str(path)
        self._file: Final = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, *, pid: int = 0, key: str = "", nonce: str = "", name: str = "") -> None:
        """Write a line about a process: this one, if none is named."""
        self._append(Entry(what, monotonic(), pid or os.getpid(), key, nonce=nonce, name=name))

    def begin(self, name: str = "") -> str:
        """Write that the step which is running begins; return the name of this execution."""
        nonce = new_id()
        self._write_of_step("begin", nonce, name)
        return nonce

    def end(self, nonce: str) -> str:
        """Write that it is about to end."""
        self._write_of_step("end", nonce, "")
        return nonce

    def _write_of_step(self, what: str, nonce: str, name: str) -> None:
        step = sf.current_step()
        key, attempt, fence = step.idempotency_key, step.attempt, step.fence
        self._append(Entry(what, monotonic(), os.getpid(), key, attempt, fence, nonce, name))

    def _append(self, entry: Entry) -> None:
        os.write(self._file, msgspec.json.encode(entry) + b"\n")

    def entries(self) -> list[Entry]:
        """Return all lines, in the order in which they were written, without one that is being written."""
        os.lseek(self._file, 0, os.SEEK_SET)
        with open(self.path, "rb") as lines:  # noqa: PTH123 -- plain text, as it was given
            return [msgspec.json.decode(line, type=Entry) for line in lines if line.endswith(b"\n")]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


async def written(ledger: Ledger, *, what: str, key: str, number: int = 1, name: str = "") -> list[Entry]:
    """Wait until the ledger has so many lines of a kind about a key."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = [e for e in ledger.entries() if e.what == what and e.key == key and name in ("", e.name)]
            if len(found) >= number:
                return found
            await asyncio.sleep(0.002)  # other processes write it, and a file tells nobody
