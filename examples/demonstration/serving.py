"""A server of the support chat in a process of its own, and how the demonstration talks to it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from demonstration.processes import PATIENCE, end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXAMPLES: Final = Path(__file__).resolve().parent.parent
STORE: Final = "STANDFAST_DEMO_STORE"
TOKEN: Final = "STANDFAST_TOKEN"  # noqa: S105 -- the name of a variable, and no token
LEDGER: Final = "STANDFAST_DEMO_LEDGER"
SECRET: Final = "whsec_ZGVtb25zdHJhdGlvbi1vbmx5LTAxMjM0NTY3ODk="  # noqa: S105 -- of a carrier that does not exist
CHAT: Final = "/chat/support-chat"


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    body: Any
    session: str


@dataclass(frozen=True)
class Served:
    """A server that is up, and the token that its callers show."""

    address: str
    token: str

    @property
    def page(self) -> str:
        """Where a browser opens the chat."""
        return f"{self.address}{CHAT}/?token={self.token}"

    async def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request over a connection of its own, and wait for the answer."""
        return await asyncio.to_thread(self._call, method, path, body, headers)

    def _call(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = HTTPConnection(self.address.removeprefix("http://"), timeout=PATIENCE)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items() if value}
            shown = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
            connection.request(method, path, body or None, shown | named)
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read()), answer.headers.get("Standfast-Session", ""))

    async def say(self, text: str, session: str) -> Answer:
        """Write something into the chat; without a session a new one begins."""
        said = json.dumps({"text": text}).encode()
        return await self.call("POST", f"{CHAT}/messages", said, Standfast_Session=session)

    async def deliver(self, delivery: str, parcel: str) -> Answer:
        """Tell what happened to a parcel, as the carrier signs it."""
        body, now = json.dumps({"type": "parcel.moved", "parcel": parcel}).encode(), str(int(time.time()))
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        signature = hmac.new(key, f"{delivery}.{now}.".encode() + body, sha256).digest()
        signed = f"v1,{base64.b64encode(signature).decode()}"
        headers = {"webhook-id": delivery, "webhook-timestamp": now, "webhook-signature": signed}
        return await self.call("POST", "/webhooks/carrier", body, **headers)

    async def look(self, request_id: str) -> dict[str, Any]:
        """Ask where a request stands."""
        answer = await self.call("GET", f"/requests/{request_id}")
        return dict(answer.body)


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    """Serve the support chat on a SQLite file in a folder, on a free port of this machine."""
    token = sf.web.new_token()
    environment = os.environ | {
        STORE: f"sqlite:///{folder / 'chat.db'}",
        LEDGER: str(folder / "carrier.log"),
        TOKEN: token,
    }
    command = [sys.executable, "-m", "standfast", "serve", "demonstration.desk:app", "--port", "0", "--grace", "1s"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--app-dir",
        str(EXAMPLES),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            told = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+", told)
        if found is None:
            raise RuntimeError("the server did not start")
        yield Served(found[0], token)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await end(process)


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[str]:
    """Serve a dashboard on the same file, from another process; return the address that opens it once."""
    command = [sys.executable, "-m", "standfast", "dashboard", f"sqlite:///{folder / 'chat.db'}", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            told = (await process.stdout.readline()).decode()
        yield told.removeprefix("open ").strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await end(process)
