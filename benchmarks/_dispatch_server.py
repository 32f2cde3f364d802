"""A process that serves a bare route or flows: the same server, the same settings, the same JSON.

Started as ``python -m benchmarks._dispatch_server bare``, ``... fastapi``, ``... local URL``, ``... shared URL``,
``... dropped URL``, ``... encoded URL`` or ``... sent URL RECEIVER``, it prints its port and serves until its stdin is
closed. The last three trace, see :mod:`benchmarks._spans`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import standfast as sf
from benchmarks._dispatch_flow import FLOW, TOKEN, Question, answer
from benchmarks._spans import provider
from benchmarks.harness import ROOT
from standfast.cli.http_server import OBJECTS
from standfast.web.protocol import HttpProtocol

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

Kind = Literal["bare", "fastapi", "local", "shared", "dropped", "encoded", "sent"]
_DECODER: Final = msgspec.json.Decoder(Question)
_ENCODER: Final = msgspec.json.Encoder()


async def answered(request: Request) -> Response:
    """Do what the actions do, and nothing else."""
    question = _DECODER.decode(await request.body())
    given = answer(question.text, question.number, question.tags)
    return Response(_ENCODER.encode(given), media_type="application/json")


class Asked(BaseModel):
    """What is asked, as FastAPI checks it."""

    text: str
    number: int
    tags: list[str]


class Answered(BaseModel):
    """What is answered, as FastAPI checks it."""

    text: str
    number: int
    tags: int


def fastapi_app() -> FastAPI:
    """Return what checks inputs and outputs, too, the way that is common."""
    app = FastAPI()

    @app.post("/flows/bench/allow")
    async def allow(asked: Asked) -> Answered:
        given = answer(asked.text, asked.number, asked.tags)
        return Answered(text=given.text, number=given.number, tags=given.tags)

    return app


def app_of(kind: Kind, url: str, receiver: str = "") -> ASGIApp:
    """Return what is served."""
    if kind == "bare":
        return Starlette(routes=[Route("/flows/bench/allow", answered, methods=["POST"])])
    if kind == "fastapi":
        return fastapi_app()
    limits = sf.web.AppLimits(requests=10_000)
    arbiter: Literal["local", "shared"] = "shared" if kind == "shared" else "local"
    hooks = [sf.admin.TracingHook(provider(receiver or kind))] if kind in ("dropped", "encoded", "sent") else []
    app = sf.App(url, flows=[FLOW], arbiter=arbiter, limits=limits, hooks=hooks)
    app.token = TOKEN
    return app


async def serve(kind: Kind, url: str, receiver: str = "") -> None:
    """Serve as ``standfast serve`` does, whatever it is, until stdin is closed."""
    with socket.create_server(("127.0.0.1", 0), backlog=2_048) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app_of(kind, url, receiver),
            http=HttpProtocol,
            loop="asyncio",
            ws="none",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        await _Server(config).serve(sockets=[listener])


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where it listens, and hear when it is to end."""
        await super().startup(sockets)
        assert sockets is not None
        gc.collect()
        gc.freeze()
        gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
        self._hearing = asyncio.create_task(self._hear())
        print(sockets[0].getsockname()[1], flush=True)

    async def _hear(self) -> None:
        await asyncio.to_thread(sys.stdin.read)
        self.should_exit = True


class Served:
    """A process that serves; seen from the one that started it."""

    def __init__(self, kind: Kind, url: str = "", receiver: str = "") -> None:
        command = [sys.executable, "-m", "benchmarks._dispatch_server", kind, url, receiver]
        pipe = subprocess.PIPE
        self._process: Final = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.port: Final = int(self._process.stdout.readline())

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(kind: str, url: str = "", receiver: str = "") -> None:
    """Serve."""
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(serve(cast("Kind", kind), url, receiver))


if __name__ == "__main__":
    main(*sys.argv[1:])
