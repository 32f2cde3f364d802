"""A process that keeps one server for its owner, and ends it when the owner is gone, however that came about.

It answers on its standard output, first where the server is and then once for each line on its standard input:
``start``, ``stop``, ``cont``, ``kill`` or ``quit``. ``leave`` makes it end.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tests.services.orders import Order, Place
from tests.services.places import MissingError
from tests.services.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable


def attempt(action: Callable[[], Place]) -> Place:
    """Do something with the server; where it could not be done, the answer says why."""
    try:
        return action()
    except MissingError as problem:
        return Place(missing=str(problem))
    except Exception:  # noqa: BLE001 - whatever it is, the test must be told: this process has no other voice
        return Place(missing=traceback.format_exc())


def answer(place: Place) -> None:
    """Tell whoever asked; nobody may be listening any more."""
    with suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(place) + b"\n")


def serve(order: Order, *, detached: bool) -> None:
    """Keep the server until the owner is gone."""
    server = ServerProcess(order)
    try:
        place = attempt(server.start)
        answer(place)
        if detached:
            hang_up()
        if not place.missing:
            obey(order.owner, server)
    finally:
        server.kill()


def hang_up() -> None:
    """Close standard output: who started this process waits for its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def obey(owner: int, server: ServerProcess) -> None:
    """Do what is asked on standard input until the owner is gone."""
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    orders = sys.stdin.buffer
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(orders, select.POLLIN)
    while watched not in (ready := dict(poll.poll())):
        if orders.fileno() in ready:
            line = orders.readline().decode().strip()
            if line == "leave":
                return
            if line:
                answer(attempt(getattr(server, line)))
            else:
                poll.unregister(orders)


def leave(folder: Path) -> None:
    """Remove what the server wrote, and the folder of the run once it is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    for left in (folder.with_suffix(".json"), folder.with_suffix(".lock")):
        left.unlink(missing_ok=True)
    with suppress(OSError):
        folder.parent.rmdir()


def main() -> None:
    """Keep the server that the first argument describes; with a second one, leave the caller at once."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    detached = len(sys.argv) > 2
    if detached and os.fork():
        return
    os.setsid()
    folder = Path(order.folder)
    folder.mkdir(parents=True)
    try:
        serve(order, detached=detached)
    finally:
        leave(folder)


if __name__ == "__main__":
    main()
