"""The two processes of the benchmark of viewers: one serves a dashboard, one loads the store. Both count store calls.

Each is started with the URL of the store and prints JSON to whoever writes a line to it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any, Final

import uvicorn

import standfast as sf
from standfast.stores.group_commit import GroupedStore
from standfast.web.auth import OwnToken
from standfast.web.dashboard import Dashboard

TOKEN: Final = "t" * 24
AT_ONCE: Final = 50
CALLS: Final[Counter[str]] = Counter()


@sf.step
async def add_one(number: int) -> int:
    """Do nothing to speak of."""
    return number + 1


@sf.workflow
async def five(ctx: sf.Context, number: int) -> int:
    """Take five steps."""
    for _ in range(5):
        number = await ctx.step(add_one, number)
    return number


def count_calls() -> None:
    """Count what is asked of stores in this process."""
    for name in ("read", "scan", "commit", "update"):
        _count(name)


def _count(name: str) -> None:
    plain: Any = getattr(GroupedStore, name)

    async def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- whatever the store is asked
        CALLS[name] += 1
        return await plain(*args, **kwargs)

    setattr(GroupedStore, name, counted)


def answer_questions(**facts: object) -> None:
    """Print the counts so far whenever a line comes; end with the input."""

    def answer() -> None:
        for _ in sys.stdin:
            told = {**facts, "calls": sum(CALLS.values()), "cpu": time.process_time(), "at": time.perf_counter()}
            print(json.dumps(told), flush=True)

    threading.Thread(target=answer, daemon=True).start()


async def serve(url: str) -> None:
    """Serve a dashboard."""
    own = OwnToken()
    own.token = TOKEN
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer_questions(port=listener.getsockname()[1])
        config = uvicorn.Config(Dashboard(url, authenticate=own), log_level="warning", lifespan="off")
        await uvicorn.Server(config).serve([listener])


async def load(url: str) -> None:
    """Make runs of five steps, so many at a time."""
    async with sf.Engine(url, workflows=[five]) as engine:
        answer_questions()

        async def some() -> None:
            while True:
                await (await engine.start(five, 1)).result()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    count_calls()
    asyncio.run({"serve": serve, "load": load}[sys.argv[1]](sys.argv[2]))
