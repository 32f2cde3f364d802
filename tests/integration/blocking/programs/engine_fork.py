"""Uses a blocking engine, forks, and lets both go on with it: ``engine_fork URL HOW``.

HOW is ``os`` or ``multiprocessing``. Each line that is printed is one thing that worked, or the error that it met.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import standfast as sf
from standfast import blocking
from tests.integration.blocking.programs.fork import attempt, say


@sf.step
def process() -> int:
    """Say in which process it runs."""
    return os.getpid()


@sf.workflow
async def tells(ctx: sf.Context) -> int:
    """Say which process drives it."""
    return await ctx.step(process)


@sf.workflow
async def waits(ctx: sf.Context) -> tuple[str, int]:
    """Wait for a signal, and say what it brought and who drives it then."""
    return await ctx.wait_signal("go"), await ctx.step(process)


def child(engine: blocking.Engine, run: blocking.Run[tuple[str, int]], parent: int) -> None:
    """Be the child: use what was inherited."""
    attempt("child-knows-the-run", lambda: run.info().workflow)
    attempt("child-signals-it", lambda: run.signal("go", "news"))
    attempt("child-hears-its-result", lambda: run.result(timeout="20s") == ("news", parent))
    attempt("child-starts-another", lambda: engine.start(tells).result(timeout="20s") == os.getpid())
    space = engine.space
    attempt("workers-there-are", lambda: len(space.scan(*space.key("worker").within(), limit=10).records))
    engine.close()
    attempt("child-has-closed-it", engine.list)


def forked(how: str, engine: blocking.Engine, run: blocking.Run[tuple[str, int]]) -> int:
    """Fork and return the child's exit status."""
    if how == "os":
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            child(engine, run, parent)
            sys.exit(0)  # leaves the parent's block, and runs what is to be run at exit
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("fork").Process(target=child, args=(engine, run, os.getpid()))
    process.start()
    process.join()
    return process.exitcode or 0


def main(url: str, how: str) -> None:
    """Be the parent."""
    with blocking.Engine(
        url, workflows=[tells, waits], lease="10s", worker=sf.admin.WorkerLimits(linger="1 hour")
    ) as engine:
        run = engine.start(waits)
        say("child-ended", forked(how, engine, run))
        attempt("parent-hears-the-result", lambda: run.result(timeout="20s") == ("news", os.getpid()))
        attempt("parent-drives", lambda: engine.start(tells).result(timeout="20s") == os.getpid())
    say("parent-ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
