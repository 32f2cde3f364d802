"""What servers serve in these tests: each begin and end is a line in one file, so that it can be checked afterwards."""

from __future__ import annotations

import asyncio
import os

import standfast as sf

LEDGER = os.environ["STANDFAST_TEST_LEDGER"]
FOUR_EYES = float(os.environ.get("STANDFAST_TEST_SECONDS", "0.01"))

desk = sf.Flow("desk", concurrency=sf.Queue(timeout="60s", max_waiting=1_000))


def note(what: str, request: sf.Request, number: int) -> None:
    """Write one line; the system appends it as a whole."""
    line = f"{what} {request.session_id} {number} {os.getpid()}\n"
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


async def work(request: sf.Request, number: int) -> int:
    """Take a while, tell how far it is, and add to the session."""
    note("begin", request, number)
    try:
        for part in range(3):
            request.emit({"number": number, "part": part})
            await asyncio.sleep(FOUR_EYES)
        request.session.append("numbers", number)
    finally:
        note("end", request, number)
    return number


@desk.action(durable=True)
async def again(request: sf.Request, number: int) -> int:
    """Be run again if its server dies."""
    return await work(request, number)


@desk.action(durable=True, interrupted="fail")
async def once(request: sf.Request, number: int) -> int:
    """Be told interrupted if its server dies."""
    return await work(request, number)


@desk.action(on_disconnect="continue")
async def here(request: sf.Request, number: int) -> int:
    """Run in the server that took it, while its caller waits."""
    return await work(request, number)


@desk.action
async def numbers(request: sf.Request) -> list[int]:
    """Return what the session has seen."""
    found: list[int] = await request.session.get("numbers", [])
    return found


app = sf.App(os.environ["STANDFAST_STORE"], flows=[desk])
