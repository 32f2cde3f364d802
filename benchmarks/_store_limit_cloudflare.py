"""The limit of Cloudflare's runtime: a bare object that writes the same rows, over one WebSocket."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks._sqlite_limit import HANDLE
from benchmarks._store_limit import TASKS, Counting
from tests.services.server_process import DIES_WITH_PARENT, free_port
from tests.services.workerd import Workerd

OBJECT: Final = Path(__file__).with_name("_bare_object.js")


class Cloudflare(Counting):
    """One message with all puts, and one answer."""

    def __init__(self, process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
        super().__init__()
        self._process, self._folder = process, folder
        self._session = aiohttp.ClientSession()
        self._ws: aiohttp.ClientWebSocketResponse | None = None

    async def connect(self, url: str) -> None:
        """Open the WebSocket."""
        self._ws = await self._session.ws_connect(url, max_msg_size=0)

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        assert self._ws is not None
        puts = [(key.hex(), version, text.decode()) for key, version, text in self.puts(tasks)]
        await self._ws.send_str(json.dumps((HANDLE, self.number, puts)))
        first = int(await self._ws.receive_str())
        for n, task in enumerate(tasks):
            self.versions[task] = first + n

    async def aclose(self) -> None:
        """End the runtime."""
        await self._session.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def started(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a runtime with the bare object in place of the worker."""
    kind = Workerd()
    kind.prepare(folder, "")
    (folder / "worker.js").write_text(OBJECT.read_text())
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([*DIES_WITH_PARENT, *kind.command(folder, port)], stdout=log, stderr=log)


async def open_cloudflare(url: str) -> Cloudflare:
    """Connect to a bare object in a runtime beside the one at ``url``."""
    del url
    port, folder = free_port(), tempfile.TemporaryDirectory(prefix="standfast-bare-")
    process = started(Path(folder.name), port)
    bare = Cloudflare(process, folder)
    deadline = time.monotonic() + 20
    while True:
        try:
            await bare.connect(f"ws://127.0.0.1:{port}/")
            break
        except aiohttp.ClientError:
            if time.monotonic() > deadline or process.poll() is not None:
                await bare.aclose()
                raise
    await bare.commit(range(TASKS))
    return bare
