"""A server that loads the application before it forks its workers, as ``gunicorn --preload`` does: ``prefork URL``.

Each worker serves requests in threads; each request adds to a number in a file, read and written apart.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from standfast import blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORKERS, THREADS, REQUESTS = 3, 3, 5

space = blocking.open(sys.argv[1])
with space.mutex("warm-up").hold():  # the parent has used it before it forks
    pass
number = Path(sys.argv[2])


def application(
    _environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """Add one, under a mutex that all workers share."""
    with space.mutex("number").hold(timeout="30s"):
        value = int(number.read_text()) + 1
        number.write_text(str(value))
    start_response("200 OK", [])
    return [str(value).encode()]


def serve() -> None:
    """Answer some requests."""
    for _ in range(REQUESTS):
        application({}, lambda _status, _headers: None)


def work() -> None:
    """Be a worker."""
    threads = [threading.Thread(target=serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Fork the workers and wait for them."""
    number.write_text("0")
    workers = []
    for _ in range(WORKERS):
        pid = os.fork()
        if not pid:
            work()
            sys.exit(0)
        workers.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
    print(number.read_text(), *statuses)


main()
