"""A server that uses its engine before it forks its workers, like ``gunicorn --preload``: ``engine_prefork URL FILE``.

Each worker serves requests in threads; each request starts an order, which others start too, and waits for it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import standfast as sf
from standfast import blocking

WORKERS, THREADS, ORDERS = 3, 3, 5


@sf.step
def ship(file: str, order: str) -> None:
    """Write down that an order was shipped."""
    with Path(file).open("a") as shipped:
        shipped.write(f"{order}\n")


@sf.workflow
async def fulfil(ctx: sf.Context, file: str, order: str) -> str:
    """Ship an order."""
    await ctx.step(ship, file, order)
    return f"{order} shipped"


def serve(engine: blocking.Engine, file: str, answers: list[str]) -> None:
    """Be a thread of a worker."""
    for number in range(ORDERS):
        order = f"order-{number}"
        answers.append(engine.start(fulfil, file, order, id=order).result(timeout="20s"))


def worker(engine: blocking.Engine, file: str) -> int:
    """Be a worker, and return its exit status."""
    answers: list[str] = []
    threads = [threading.Thread(target=serve, args=(engine, file, answers)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    return 0 if sorted(answers) == sorted(THREADS * [f"order-{n} shipped" for n in range(ORDERS)]) else 1


def main(url: str, file: str) -> None:
    """Be the server."""
    engine = blocking.Engine(url, workflows=[fulfil])
    engine.start(fulfil, file, "first").result(timeout="20s")
    children = []
    for _ in range(WORKERS):
        pid = os.fork()
        if not pid:
            os._exit(worker(engine, file))
        children.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(*sorted(Path(file).read_text().split()), *statuses, flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
