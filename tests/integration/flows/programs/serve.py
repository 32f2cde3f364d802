"""Serves a flow: ``serve URL NAME``. Each action says ``begun NAME`` and ends when it is told ``go NAME``.

``send ACTION NAME HOW KEY`` sends a request, which is ``attended`` or ``durable``, with an idempotency key or ``-``; it
says ``sent ID``. If its name begins with ``fragile``, a request that has ended one server is quarantined.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import standfast as sf
from tests.integration.flows.stage import flow_of
from tests.integration.locks.programs.contend import commands
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say

if TYPE_CHECKING:
    from standfast.flows.dispatcher import Dispatcher


async def main(url: str, server: str) -> None:
    """Serve until told nothing more."""
    told = await commands()
    gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def work(request: sf.Request, name: str) -> str:
        request.session.append("names", f"{name}@{server}")
        request.emit(server)
        await asyncio.sleep(0)
        say("begun", name)
        await gates[name].wait()
        return f"{name}@{server}"

    engine = sf.Engine(
        url, lease=3, worker=sf.admin.WorkerLimits(quarantine_after=1 if server.startswith("fragile") else 5)
    )
    async with sf.Dispatcher(engine, [flow_of(work)]) as dispatcher:
        say("ready")
        while words := (await told.readline()).decode().split():
            if words[0] == "go":
                gates[words[1]].set()
            else:
                say("sent", await send(dispatcher, *words[1:]))


async def send(dispatcher: Dispatcher, action: str, name: str, how: str, key: str) -> str:
    """Send a request, and return its id."""
    arrival = sf.Call(
        flow="chat",
        action=action,
        inputs={"name": name},
        session="s-1",
        attended=how == "attended",
        idempotency_key=key.strip("-"),
    )
    return (await dispatcher.dispatch(arrival)).id


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))
