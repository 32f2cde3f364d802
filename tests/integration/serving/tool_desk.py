"""Tools that servers serve in these tests, without sessions: what is held is a line in one file, and so is its end."""

from __future__ import annotations

import asyncio
import os

import standfast as sf

LEDGER = os.environ["STANDFAST_TEST_LEDGER"]

desk = sf.Flow("desk")


def note(what: str) -> None:
    """Write one line; the system appends it as a whole."""
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{what} {os.getpid()}\n".encode())
    os.close(descriptor)


@desk.action
async def greet(request: sf.Request, name: str) -> list[str]:
    """Greet somebody, and say where."""
    request.emit({"at": "door"})
    return [f"hello {name}", str(os.getpid())]


@desk.action(concurrency=sf.Reject(key="tenant"))
async def hold(request: sf.Request) -> None:
    """Hold the desk until the call is cancelled."""
    del request
    note("held")
    try:
        await asyncio.Event().wait()
    finally:
        note("let-go")


app = sf.App(os.environ["STANDFAST_STORE"], flows=[desk], tools=[desk], site=sf.web.Site(tool_sessions=False))
