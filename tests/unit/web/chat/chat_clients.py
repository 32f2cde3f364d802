"""A chat, and clients of it that need no network."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

import httpx

import standfast as sf
from standfast.web.app import App
from standfast.web.chat import Chat

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from standfast.web.chat import ChatLimits

PATH = "/chat/support"
HOST = "chat.example"
PATIENCE = 10.0


def known_by_header(connection: HTTPConnection) -> sf.Principal | None:
    """Everybody says who they are, and nobody lies."""
    user = connection.headers.get("x-user")
    return None if user is None else sf.Principal("acme", user)


def chat_app(flow: sf.Flow, limits: ChatLimits | None = None, **options: Any) -> App:
    """Return an application with one chat, kept in memory."""
    chat = Chat(flow, limits=limits, **{name: options.pop(name) for name in ("append", "page") if name in options})
    return App("memory://", flows=[flow], chats=[chat], authenticate=known_by_header, **options)


class Support:
    """A flow that answers word by word, when it is told to go on."""

    def __init__(self, policy: Any = "queue") -> None:
        self.flow = sf.Flow("support")
        self.kept: list[str] = []
        self.go = asyncio.Semaphore(0)
        self.flow.action(name="append_message")(self._append)
        self.flow.action(name="respond", concurrency=policy)(self._respond)

    async def _append(self, request: sf.Request, text: str) -> None:
        self.kept.append(text)
        request.session.append("messages", text)

    async def _respond(self, request: sf.Request, text: str) -> str:
        for word in ("re:", text, "done"):
            request.emit(word)
            await self.go.acquire()
        return f"re: {text}"

    def go_on(self, words: int = 1_000) -> None:
        """Let so many words more be said."""
        for _ in range(words):
            self.go.release()


class Socket:
    """A WebSocket to an application in this process."""

    def __init__(self, app: Any, user: str | None = "ada", **headers: str) -> None:
        told = {"host": HOST, **({} if user is None else {"x-user": user}), **headers}
        self._scope = {
            "type": "websocket",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in told.items()],
            "client": ("192.0.2.7", 4711),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._app = app
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.sent = 0
        self.cursor = ""

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.sent += 1
        await self._from_app.put(message)

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._app(self._scope, self._to_app.get, self._send))
        await self._to_app.put({"type": "websocket.connect"})
        self.first = await self.raw()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.reads.set()
        await self._to_app.put({"type": "websocket.disconnect", "code": 1001})
        await asyncio.wait_for(self._task, PATIENCE)

    def lose(self) -> None:
        """Forget what is on its way to the server."""
        while not self._to_app.empty():
            self._to_app.get_nowait()

    async def raw(self) -> dict[str, Any]:
        """Return the next message of the server."""
        return await asyncio.wait_for(self._from_app.get(), PATIENCE)

    async def say(self, kind: str, **facts: Any) -> None:
        """Send a frame."""
        await self.say_raw(json.dumps({"type": kind, **facts}))

    async def say_raw(self, text: str) -> None:
        """Send text as it is."""
        await self._to_app.put({"type": "websocket.receive", "text": text})

    async def open(self, session: str = "", after: str = "") -> str:
        """Open a session and return its id."""
        await self.say("open", session=session, after=after)
        return str((await self.until("hello"))["session"])

    async def hear(self) -> dict[str, Any]:
        """Return the next frame; a closed connection is a frame of its own kind."""
        message = await self.raw()
        if message["type"] == "websocket.close":
            return {"type": "closed", "code": message["code"]}
        frame: dict[str, Any] = json.loads(message["text"])
        self.cursor = frame.get("cursor", self.cursor)
        return frame

    async def until(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Return the next frame of a kind, and let others go by."""
        while True:
            frame = await self.hear()
            if frame["type"] == kind and facts.items() <= frame.items():
                return frame

    async def frames_until(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """Return all frames up to one of a kind."""
        frames = [await self.hear()]
        while frames[-1]["type"] != kind or not facts.items() <= frames[-1].items():
            frames.append(await self.hear())
        return frames


def caller(app: App, user: str = "ada") -> httpx.AsyncClient:
    """Return a client over HTTP."""
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers={"x-user": user})
