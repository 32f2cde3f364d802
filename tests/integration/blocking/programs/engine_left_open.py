"""Ends in one of several ways without closing its engine: ``engine_left_open URL HOW``."""

from __future__ import annotations

import contextlib
import sys
import threading

import standfast as sf
from standfast import blocking
from standfast.errors import StandfastError

began = threading.Event()


@sf.step
def endless() -> None:
    """Block a thread for longer than the program lasts."""
    began.set()
    threading.Event().wait(60)


@sf.workflow
async def waits(ctx: sf.Context) -> str:
    """Wait for a signal."""
    word: str = await ctx.wait_signal("go")
    return word


@sf.workflow
async def blocks(ctx: sf.Context) -> str:
    """Run a step that does not end."""
    await ctx.step(endless)
    return "never"


def hear(run: blocking.Run[str]) -> None:
    """Wait for a result until the program ends."""
    with contextlib.suppress(StandfastError):
        run.result()


def main(url: str, how: str) -> None:
    """Start a run, and end."""
    engine = blocking.Engine(
        url, workflows=[waits, blocks], lease="600s", worker=sf.admin.WorkerLimits(linger="1 hour")
    )
    run = engine.start(blocks if how == "step" else waits, id="left")
    if how == "step":
        began.wait(20)
    elif how == "result":
        threading.Thread(target=hear, args=(run,), daemon=True).start()
    print("ended", flush=True)
    if how == "raised":
        raise KeyError(how)


if __name__ == "__main__":
    main(*sys.argv[1:])
