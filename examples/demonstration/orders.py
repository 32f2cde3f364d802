"""The order workflow of the sixth scene, and the processes that drive it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final

import msgspec

import standfast as sf
from demonstration.talking import say

if TYPE_CHECKING:
    from pathlib import Path

STEPS: Final = ("reserve", "charge", "pack", "ship")


class Order(msgspec.Struct, frozen=True):
    """What a run is started with."""

    id: str
    ledger: str
    pause: float


class Entry(msgspec.Struct, frozen=True):
    """One line of the ledger: a process has begun or ended a step."""

    order: str
    step: str
    what: str
    pid: int
    at: float


async def do(order: Order, step: str) -> str:
    """Do something to the world that takes a while, and write down in a ledger that it began and ended."""
    _write(order, step, "begins")
    await asyncio.sleep(order.pause)
    _write(order, step, "ends")
    return f"{step} {order.id}"


def _write(order: Order, step: str, what: str) -> None:
    entry = msgspec.json.encode(Entry(order.id, step, what, os.getpid(), time.monotonic())) + b"\n"
    file = os.open(order.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, entry)
    finally:
        os.close(file)


def entries(ledger: Path) -> list[Entry]:
    """Return what the ledger says so far."""
    lines = ledger.read_bytes().splitlines() if ledger.exists() else []
    return [msgspec.json.decode(line, type=Entry) for line in lines]


@sf.workflow
async def fulfil(ctx: sf.Context, order: Order) -> list[str]:
    """Reserve, charge, pack and ship: each once, whatever dies meanwhile."""
    return [await ctx.step(step, do, order, step) for step in STEPS]


async def drive(url: str, lease: float) -> None:
    """Be a worker until somebody ends it."""
    async with sf.Engine(url, namespace="demo", workflows=[fulfil], lease=lease):
        say(ready=True)
        await asyncio.Event().wait()
