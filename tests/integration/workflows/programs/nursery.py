"""Forks workers on demand: they cost little to begin, so many can be killed. Says who was born, is ready, is gone."""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import signal
import sys

from standfast.cli.launcher import die_with
from tests.integration.workflows.flows import make_engine

QUARANTINE = 1_000_000  # it is the test that kills them, not their runs


def say(*words: object) -> None:
    """Write one line at once; a short one never mixes with another process's."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def work(lease: float, deaths: int, names: list[str]) -> None:
    """Be a worker until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with make_engine(names, lease=lease, quarantine_after=deaths or QUARANTINE):
        say("ready", os.getpid())
        await stop.wait()


def bear(parent: int, lease: float, deaths: int, names: list[str]) -> None:
    """Fork a worker."""
    pid = os.fork()
    if pid:
        say("born", pid)
        return
    status = 1
    try:
        die_with(parent)
        asyncio.run(work(lease, deaths, names))
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def bury() -> None:
    """Tell of those who are gone."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say("gone", pid, os.waitstatus_to_exitcode(status))


def prepare() -> None:
    """Import the driver of the store once, so that no worker has to."""
    scheme = os.environ["STANDFAST_STORE"].partition(":")[0]
    importlib.import_module(f"standfast.stores.{scheme}")


def main() -> None:
    """Read a line for each worker that is wanted: its lease, how many deaths quarantine a run, and its workflows."""
    prepare()
    me, heard = os.getpid(), b""
    while True:
        if select.select([0], [], [], 0.005)[0]:
            more = os.read(0, 4096)
            if not more:
                return
            heard += more
            *lines, heard = heard.split(b"\n")
            for line in lines:
                lease, deaths, names = line.decode().split()
                bear(me, float(lease), int(deaths), [] if names == "*" else names.split(","))
        bury()


if __name__ == "__main__":
    main()
