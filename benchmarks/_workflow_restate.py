"""Restate on loopback, in an environment of its own: ``python -m benchmarks._workflow_restate server-binary folder``.

This process is the customer; it starts the server, and one service endpoint as its documentation shows it: the
Python SDK under hypercorn. The server keeps a log of its own, which it syncs to the disk by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import restate

from benchmarks._workflow_windows import Window, serve, tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK: Final = "127.0.0.1"
WARM_UP: Final = 0.3  # seconds
PATIENCE: Final = 20.0

numbers = itertools.count()


async def _add(ctx: Any, order: dict[str, int]) -> int:  # noqa: ANN401 -- the SDK's context is not known outside of its environment
    number = order["number"]
    for each in range(order["steps"]):
        number = await ctx.run_typed(f"add_one-{each}", _add_one, number=number)
    return number


async def _add_one(number: int) -> int:
    return number + 1


service: Any = restate.Service("bench")
service.handler(name="add")(_add)
one_at_a_time: Any = restate.VirtualObject("queue")
one_at_a_time.handler(name="add")(_add)
app: Any = restate.app([service, one_at_a_time])


class Connection:
    """A connection to the server that is kept open, for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, path: str, steps: int) -> None:
        """Run a workflow, and see that its result is right."""
        number = next(numbers)
        body = json.dumps({"number": number, "steps": steps}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Type: application/json\r\n"
        self._streams = reader, writer = self._streams or await asyncio.open_connection(LOOPBACK, self._port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert json.loads(await self._answer(reader)) == number + steps

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        length = next(int(line.split(":")[1]) for line in headers if line.startswith("content-length:"))
        body = await reader.readexactly(length)
        assert " 200 " in status, body
        return body

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()


class Customer:
    """Somebody who has workflows run by the server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def runs(self, at_once: int, steps: int, seconds: float) -> Window:
        """Keep so many connections busy with runs; they are open before the window is."""
        return asyncio.run(self._windows("/bench/add", at_once, steps, seconds))

    def queue(self, backlog: int, seconds: float) -> float:
        """Return how many runs of one step a second get their turn on one key."""
        return asyncio.run(self._windows("/queue/key/add", backlog, 1, seconds)).rate

    async def _windows(self, path: str, at_once: int, steps: int, seconds: float) -> Window:
        idle = [Connection(self._port) for _ in range(at_once)]
        everyone = [*idle]

        async def run() -> None:
            connection = idle.pop()
            await connection.call(path, steps)
            idle.append(connection)

        await tasks(run, at_once, min(WARM_UP, seconds))
        window = await tasks(run, at_once, seconds)
        for each in everyone:
            each.close()
        return window


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def register(admin: int, endpoint: int) -> None:
    """Tell the server where the service is, as soon as both of them are up."""
    url = f"http://{LOOPBACK}:{admin}/deployments"
    body = json.dumps({"uri": f"http://{LOOPBACK}:{endpoint}"}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    until = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()  # noqa: S310 -- our own server
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def started(*command: str, **more: str) -> Iterator[None]:
    """Keep a program running."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, stdin=quiet, env={**os.environ, **more}) as process:
        try:
            yield
        finally:
            process.kill()


def settings(ingress: int, admin: int) -> dict[str, str]:
    """Return what the server is told beyond its defaults: where to listen, and to keep to itself."""
    return {
        "RESTATE_INGRESS__BIND_ADDRESS": f"{LOOPBACK}:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{LOOPBACK}:{admin}",
        "RESTATE_BIND_ADDRESS": f"{LOOPBACK}:{free_port()}",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }


def main(binary: str, folder: str) -> None:
    """Start the server and the service, and answer orders."""
    endpoint, ingress, admin = free_port(), free_port(), free_port()
    hypercorn = str(Path(sys.executable).parent / "hypercorn")
    serving = (hypercorn, "benchmarks._workflow_restate:app", "--bind", f"{LOOPBACK}:{endpoint}")
    server = (binary, "--no-logo", "--base-dir", folder)
    with started(*serving), started(*server, **settings(ingress, admin)):
        register(admin, endpoint)
        customer = Customer(ingress)
        serve({"runs": customer.runs, "queue": customer.queue})


if __name__ == "__main__":
    main(*sys.argv[1:])
