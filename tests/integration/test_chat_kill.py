"""A chat whose server is killed in the middle of an answer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import connect

from tests.fork_server import forked_exec
from tests.integration.cli.programs import SHOWN, TOKEN
from tests.services.server_process import DIES_WITH_PARENT, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from websockets.asyncio.client import ClientConnection

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 40.0


@asynccontextmanager
async def serving(port: int, folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Serve the example, and kill it at the end."""
    command = [sys.executable, "-m", "standfast", "serve", "support_chat:app", "--app-dir", str(EXAMPLES)]
    started = await forked_exec(
        *DIES_WITH_PARENT,
        *command,
        "--port",
        str(port),
        "--quiet",
        cwd=folder,
        env=os.environ | {"STANDFAST_TOKEN": TOKEN},
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        await started.wait()


@asynccontextmanager
async def talking(port: int, **opening: str) -> AsyncGenerator[ClientConnection]:
    """Open the session, as soon as there is a server."""
    url = f"ws://127.0.0.1:{port}/chat/support-chat"
    async for socket in connect(url, additional_headers=SHOWN):
        await socket.send(json.dumps({"type": "open", **opening}))
        yield socket
        await socket.close()
        return


async def until(socket: ClientConnection, kind: str, many: int = 1) -> list[dict[str, Any]]:
    """Return the frames up to the n-th of a kind."""
    frames: list[dict[str, Any]] = []
    while sum(frame["type"] == kind for frame in frames) < many:
        frames.append(json.loads(await socket.recv()))
    return frames


async def test_a_message_that_was_acknowledged_is_answered_by_the_next_server(tmp_path: Path) -> None:
    """After a kill in the middle of the first answer both answers come, complete and in order."""
    port = free_port()
    async with asyncio.timeout(PATIENCE):
        async with serving(port, tmp_path), talking(port) as socket:
            for number in range(2):
                await socket.send(json.dumps({"type": "message", "id": f"m{number}", "text": f"question {number}"}))
            frames = await until(socket, "accepted", 2)
            frames += [] if any(frame["type"] == "event" for frame in frames) else await until(socket, "event")
        session = frames[0]["session"]
        cursor = [frame["cursor"] for frame in frames if "cursor" in frame][-1]
        async with serving(port, tmp_path), talking(port, session=session, after=cursor) as again:
            ended = [frame for frame in await until(again, "ended", 2) if frame["type"] == "ended"]
    assert [frame["result"] for frame in ended] == [
        f"This is answer {number + 1} in our conversation. You wrote: question {number}" for number in range(2)
    ]
