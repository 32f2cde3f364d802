"""A real browser, driven over its DevTools protocol: a few commands over one WebSocket, so nothing more is needed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from websockets.asyncio.client import ClientConnection, connect

from tests import services
from tests.services.places import MissingError, cache, fetched
from tests.services.server_process import DIES_WITH_PARENT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

PATIENCE = 10.0
FLAGS = [
    "--headless",
    "--no-sandbox",  # it may run as root; nothing but our own page is opened
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--log-level=3",  # nobody reads what else it says
    "--remote-debugging-port=0",
]

# Resolves when an expression is true; the page is looked at again whenever something in it changes.
UNTIL = """new Promise((resolve) => {
  const look = () => { const found = (%s); if (found) { watcher.disconnect(); resolve(found); } };
  const watcher = new MutationObserver(look);
  watcher.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
  look();
})"""


def program() -> Path:
    """Return the browser; skip the test loudly if it cannot be had."""
    try:
        return fetched("browser/usr/lib/chromium/chromium-headless-shell")
    except MissingError as problem:
        services.MISSING["Chromium"] = str(problem)
        services.require(None, f"Chromium ({problem})")
        raise


def surroundings(home: str) -> dict[str, str]:
    """Return the environment of the browser: the libraries that came with it, and fonts."""
    folders = [*(cache() / "browser").glob("usr/lib/*-linux-gnu"), *(cache() / "browser").glob("usr/lib/*/pulseaudio")]
    fonts = Path(home) / "fonts.conf"
    fonts.write_text(
        f"<fontconfig><dir>{cache()}/browser/usr/share/fonts</dir><cachedir>{home}</cachedir></fontconfig>"
    )
    named = {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "HOME": home, "FONTCONFIG_FILE": str(fonts)}
    return os.environ | named


@contextmanager
def started() -> Iterator[str]:
    """Start a browser that knows nothing, and end it. Its address is where commands are sent to."""
    command, home = program(), tempfile.mkdtemp(prefix="standfast-browser-")
    arguments = [*DIES_WITH_PARENT, str(command), *FLAGS, f"--user-data-dir={home}"]
    process = subprocess.Popen(arguments, env=surroundings(home), stderr=subprocess.PIPE)
    try:
        yield _address(process)
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(home, ignore_errors=True)


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"DevTools listening on "):
            return line.split()[-1].decode()
    raise AssertionError("the browser did not start")


@asynccontextmanager
async def window(address: str) -> AsyncGenerator[Browser]:
    """Open a window that shares nothing with others, and close it."""
    async with connect(address, max_size=None, compression=None) as connection:
        opened = Browser(connection)
        try:
            await opened.open()
            yield opened
        finally:
            await opened.leave()


@final
class Browser:
    """A window of a running browser, with nothing remembered from before."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._listening = asyncio.ensure_future(self._listen())
        self._context = ""

    async def open(self) -> None:
        """Begin with an empty memory."""
        self._context = (await self.ask("Target.createBrowserContext"))["browserContextId"]

    async def leave(self) -> None:
        """Close all tabs, and listen no more."""
        await self.ask("Target.disposeBrowserContext", browserContextId=self._context)
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        async for text in self._connection:
            message = json.loads(text)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.hear(message["method"], message["params"])

    async def ask(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        told = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        await self._connection.send(json.dumps(told))
        message = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in message, message
        return dict(message["result"])

    async def tab(self, url: str) -> Tab:
        """Open a page."""
        target = (await self.ask("Target.createTarget", url="about:blank", browserContextId=self._context))["targetId"]
        session = (await self.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log"):
            await tab.ask(f"{domain}.enable")
        await tab.ask("Page.navigate", url=url)
        await asyncio.wait_for(tab.is_loaded.wait(), PATIENCE)
        return tab


@final
class Tab:
    """A page in the browser.

    Attributes:
        complaints: What went wrong in it: exceptions, and what its policy did not allow.
    """

    def __init__(self, driven: Browser, session: str) -> None:
        self._browser, self._session = driven, session
        self.is_loaded = asyncio.Event()
        self.complaints: list[str] = []

    def hear(self, event: str, facts: dict[str, Any]) -> None:
        """Take note of what the browser tells about the page."""
        if event == "Page.loadEventFired":
            self.is_loaded.set()
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(facts["exceptionDetails"]["text"])
        elif event == "Log.entryAdded" and facts["entry"]["source"] == "security":
            self.complaints.append(facts["entry"]["text"])

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command about this page."""
        return await self._browser.ask(method, self._session, **params)

    async def run(self, script: str) -> Any:
        """Return what an expression is in the page; a promise is waited for."""
        answer = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true in the page."""
        return await self.run(UNTIL % script)

    async def texts(self, selector: str) -> list[str]:
        """Return the text of all elements that a selector finds, in the order of the page."""
        found = await self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)")
        return [str(text) for text in found]

    async def write(self, text: str) -> None:
        """Type into the message box and press Enter, as a person does."""
        await self.run("document.getElementById('text').focus()")
        await self.ask("Input.insertText", text=text)
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **key)
