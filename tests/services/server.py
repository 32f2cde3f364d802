"""A server of a test's own, which it may freeze and kill."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO, cast, final

import msgspec

from tests.services.orders import Order, Place
from tests.services.places import ROOT, MissingError
from tests.services.shared_server import fresh_folder


@final
class Server:
    """A server that no other test uses; its URL stays the same for as long as it lives."""

    def __init__(self, keeper: subprocess.Popen[bytes]) -> None:
        self._keeper = keeper
        self._stdin, self._stdout = cast("IO[bytes]", keeper.stdin), cast("IO[bytes]", keeper.stdout)
        self._place = self._answer()

    @property
    def url(self) -> str:
        """Where it is reached."""
        return self._place.url

    @property
    def pid(self) -> int:
        """Its first process; 0 while it is down."""
        return self._place.pid

    def stop(self) -> None:
        """Freeze it with SIGSTOP, all its processes: connections stay open and nobody answers."""
        self._ask("stop")

    def cont(self) -> None:
        """Let it go on with SIGCONT."""
        self._ask("cont")

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut would; it is gone when this returns."""
        self._ask("kill")

    def quit(self) -> None:
        """Shut it down in good order; it is gone when this returns."""
        self._ask("quit")

    def restart(self) -> None:
        """Start it on the data it had, and at the same URL; one that runs is killed first."""
        self._ask("start")

    def close(self) -> None:
        """End it for good, and remove its data."""
        self._keeper.communicate(b"leave\n")

    def _ask(self, what: str) -> None:
        self._stdin.write(f"{what}\n".encode())
        self._stdin.flush()
        self._place = self._answer()

    def _answer(self) -> Place:
        line = self._stdout.readline()
        place = msgspec.json.decode(line, type=Place) if line else Place(missing="its keeper is gone")
        if place.missing:
            raise MissingError(place.missing)
        return place


def launch(kind: str, behind: str, environment: dict[str, str], arguments: tuple[str, ...]) -> Server:
    """Start a server that lives no longer than this process."""
    folder = fresh_folder() / kind
    order = Order(kind, str(folder), os.getpid(), behind, environment, arguments)
    command = [sys.executable, "-m", "tests.services.keeper", msgspec.json.encode(order).decode()]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        return Server(keeper)
    except MissingError:
        keeper.communicate()
        raise
