"""Keys of an issuer at an address: read when needed, kept, and never read on demand of whoever makes up tokens."""

from __future__ import annotations

import asyncio
import http.server
import threading
from http.client import BadStatusLine, IncompleteRead
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest

from standfast.errors import HttpError
from standfast.web import oauth as module
from standfast.web.oauth import COOLDOWN, FRESH, KEPT, LARGEST, SOON, FetchedKeys, fetched
from tests.unit.web.issuer import public

if TYPE_CHECKING:
    from collections.abc import Iterator


class Issuer:
    """An issuer that can rotate its keys, and be gone."""

    def __init__(self) -> None:
        self.keys = [public()]
        self.is_gone = False
        self.problem: Exception = OSError("gone")
        self.reads = 0
        self.now = 1_000.0
        self.found = FetchedKeys("https://id.example/keys", {"RS256"}, self.fetch, lambda: self.now)

    def fetch(self, url: str) -> object:
        """Answer once more."""
        self.reads += 1
        assert url
        if self.is_gone:
            raise self.problem
        return {"keys": self.keys}

    async def knows(self, name: str) -> bool:
        """Tell whether a key is found."""
        return await self.found.find(name, "RS256") is not None

    async def settle(self) -> None:
        """Wait until no look is under way."""
        while (reading := self.found._reading) is not None and not reading.done():
            await asyncio.wait([reading])


async def test_keys_are_read_once_for_many() -> None:
    """Also by those who come while they are read."""
    issuer = Issuer()
    assert all(await asyncio.gather(*(issuer.knows("first") for _ in range(50))))
    assert issuer.reads == 1


async def test_made_up_keys_make_nobody_ask_again_and_again() -> None:
    """One look a minute, however many tokens name keys that there are not, each another one."""
    issuer = Issuer()
    await issuer.knows("first")
    issuer.now += COOLDOWN
    for number in range(100):
        assert not await issuer.knows(f"made up {number}")
    assert issuer.reads == 2
    issuer.now += COOLDOWN
    await asyncio.gather(*(issuer.knows(f"made up {number}") for number in range(100)))
    assert issuer.reads == 3


async def test_a_token_without_a_key_id_makes_nobody_ask() -> None:
    """It names nothing that could be new."""
    issuer = Issuer()
    issuer.keys = [public(), public("second")]
    await issuer.knows("first")
    issuer.now += COOLDOWN
    assert not await issuer.knows("")
    assert issuer.reads == 1


async def test_a_new_key_is_found_and_a_withdrawn_one_is_gone() -> None:
    """When the issuer has rotated them."""
    issuer = Issuer()
    assert await issuer.knows("first")
    issuer.keys, issuer.now = [public("second")], issuer.now + COOLDOWN
    assert await issuer.knows("second")
    assert not await issuer.knows("first")


async def test_nobody_waits_while_known_keys_are_looked_at_again() -> None:
    """What is known counts until the answer is here."""
    issuer = Issuer()
    await issuer.knows("first")
    issuer.keys, issuer.now = [public("second")], issuer.now + FRESH
    assert await issuer.knows("first")
    await issuer.settle()
    assert not await issuer.knows("first")


async def test_known_keys_outlive_an_issuer_that_is_gone_for_a_while() -> None:
    """A day, and no longer: then nobody is let in."""
    issuer = Issuer()
    await issuer.knows("first")
    issuer.is_gone, issuer.now = True, issuer.now + KEPT - 1
    assert await issuer.knows("first")
    await issuer.settle()
    issuer.now += COOLDOWN
    with pytest.raises(HttpError):
        await issuer.knows("first")


async def test_an_issuer_that_is_gone_is_asked_seldom() -> None:
    """Those who come in between are told at once that nobody can tell."""
    issuer = Issuer()
    issuer.is_gone = True
    for _ in range(20):
        with pytest.raises(HttpError):
            await issuer.knows("first")
    assert issuer.reads == 1
    issuer.is_gone, issuer.now = False, issuer.now + SOON
    assert await issuer.knows("first")


@pytest.mark.parametrize("problem", [BadStatusLine("hello"), IncompleteRead(b"{"), ValueError(), RecursionError()])
async def test_an_issuer_that_talks_nonsense_is_as_good_as_gone(problem: Exception) -> None:
    """Whoever names a key that is known gets in, and others are told the same as always."""
    issuer = Issuer()
    issuer.is_gone, issuer.problem = True, problem
    with pytest.raises(HttpError):
        await issuer.knows("first")
    issuer.is_gone, issuer.now = False, issuer.now + SOON
    assert await issuer.knows("first")
    issuer.is_gone, issuer.now = True, issuer.now + COOLDOWN
    assert not await issuer.knows("second")


async def test_a_cancelled_caller_stops_nobody_elses_look() -> None:
    """Others wait for the same one."""
    issuer = Issuer()
    first = asyncio.ensure_future(issuer.knows("first"))
    second = asyncio.ensure_future(issuer.knows("first"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    assert issuer.reads == 1


class Pages(http.server.BaseHTTPRequestHandler):
    """What a server at an address answers."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}

    def do_GET(self) -> None:
        """Answer, and hang up."""
        status, body = self.answers[self.path]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/keys")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server on this machine."""
    Pages.answers = {
        "/keys": (200, msgspec.json.encode({"keys": [public()]})),
        "/elsewhere": (302, b""),
        "/large": (200, b" " * (LARGEST + 1)),
        "/words": (200, b"hello"),
        "/broken": (500, b"{}"),
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_keys_are_read_over_a_network(address: str) -> None:
    """In a thread, so that nobody else waits."""
    assert await FetchedKeys(f"{address}/keys", {"RS256"}).find("first", "RS256") is not None


@pytest.mark.parametrize("path", ["elsewhere", "large", "words", "broken"])
def test_what_is_no_document_of_keys_is_not_read(address: str, path: str) -> None:
    """Nor is anybody followed to another address, nor read from without end."""
    with pytest.raises((OSError, ValueError)):
        fetched(f"{address}/{path}")


def test_a_document_that_drips_is_given_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of it has to be here in time, not only the next byte."""
    monkeypatch.setattr(module, "monotonic", iter([0.0, 100.0]).__next__)
    with pytest.raises(ValueError, match="keys"):
        fetched(f"{address}/keys")
