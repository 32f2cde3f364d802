"""A conversation over HTTP, and the page."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from tests.unit.web.chat.chat_clients import HOST, PATH, Support, caller, chat_app

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from standfast.web.app import App

SESSION = "Standfast-Session"


class Stream:
    """The stream of events of a session, read up to a frame."""

    def __init__(self, app: App, session: str, after: str = "") -> None:
        self._app, self._headers = app, {"host": HOST, "x-user": "ada", SESSION.lower(): session}
        self._headers |= {"last-event-id": after} if after else {}
        self.frames: list[dict[str, Any]] = []
        self.cursor = ""

    async def until(self, kind: str, number: int = 1) -> list[dict[str, Any]]:
        """Return all frames up to the n-th of a kind, then hang up."""
        done = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            for part in re.split(r"\n\n", message.get("body", b"").decode()):
                self._hear(dict(re.findall(r"^(id|event|data): (.*)$", part, re.MULTILINE)))
            if sum(frame["type"] == kind for frame in self.frames) >= number:
                done.set()

        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        path = f"{PATH}/events"
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
        await asyncio.wait_for(self._app({**scope, "root_path": "", "client": ("192.0.2.7", 1)}, receive, send), 10)
        return self.frames

    def _hear(self, fields: dict[str, str]) -> None:
        if "data" in fields:
            self.cursor = fields.get("id", self.cursor)
            self.frames.append({"type": fields["event"], **json.loads(fields["data"])})


async def test_a_message_is_posted_and_followed() -> None:
    """The answer names the session and the request, and the stream tells the rest."""
    support = Support()
    support.go_on()
    async with chat_app(support.flow) as app, caller(app) as client:
        answer = await client.post(f"{PATH}/messages", json={"text": "hello"})
        assert answer.status_code == 202
        session = answer.headers[SESSION]
        assert session == answer.json()["session"]
        frames = await Stream(app, session).until("ended")
    assert [frame["data"] for frame in frames if frame["type"] == "event"] == ["re:", "hello", "done"]
    assert frames[-1]["request"] == answer.json()["request"]


async def test_a_stream_goes_on_after_the_last_event_that_was_read() -> None:
    """With ``Last-Event-ID`` nothing is missing and nothing comes twice."""
    support = Support()
    async with chat_app(support.flow) as app, caller(app) as client:
        session = (await client.post(f"{PATH}/messages", json={"text": "hello"})).headers[SESSION]
        support.go_on(1)
        first = Stream(app, session)
        before = await first.until("event", 2)
        support.go_on()
        after = await Stream(app, session, first.cursor).until("ended")
    assert [frame["number"] for frame in [*before, *after] if frame["type"] == "event"] == [1, 2, 3]


async def test_a_stranger_reads_and_writes_nothing() -> None:
    """Another user of the tenant gets 403 for the stream and for a message."""
    support = Support()
    support.go_on()
    async with chat_app(support.flow) as app, caller(app) as client, caller(app, "eve") as stranger:
        session = (await client.post(f"{PATH}/messages", json={"text": "hello"})).headers[SESSION]
        headers = {SESSION: session}
        answers = [
            await stranger.post(f"{PATH}/messages", json={"text": "hi"}, headers=headers),
            await stranger.get(f"{PATH}/events", headers=headers),
        ]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert support.kept == ["hello"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"text": "hello"}', "text/plain", 415),
        (b'{"text": ""}', "application/json", 422),
        (b'{"text": 5}', "application/json", 422),
        (b"[]", "application/json", 422),
        (b"{", "application/json", 422),
        (b'{"text": "' + b"x" * 200_000 + b'"}', "application/json", 413),
    ],
)
async def test_what_is_no_message_is_refused(body: bytes, kind: str, status: int) -> None:
    """Nothing of it is kept."""
    support = Support()
    async with chat_app(support.flow) as app, caller(app) as client:
        answer = await client.post(f"{PATH}/messages", content=body, headers={"content-type": kind})
    assert answer.status_code == status
    assert support.kept == []


async def test_a_place_to_go_on_from_that_was_not_given_out_is_refused() -> None:
    """It is checked before anything is sent."""
    async with chat_app(Support().flow) as app, caller(app) as client:
        answer = await client.get(f"{PATH}/events", headers={"last-event-id": "x"})
    assert answer.status_code == 422


async def test_every_address_of_a_chat_needs_credentials() -> None:
    """The page and its files too, whatever the method."""
    async with chat_app(Support().flow) as app, caller(app) as client:
        client.headers.pop("x-user")
        paths = [route.path for route in app.routes if isinstance(route, Route) and route.path.startswith("/chat")]
        answers = [await client.request(method, path) for path in paths for method in ("GET", "POST", "HEAD")]
    assert len(paths) == 7
    assert {answer.status_code for answer in answers} == {401}


# --- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"), [("", "html"), ("chat.js", "javascript"), ("chat.css", "css"), ("icon.svg", "svg")]
)
async def test_the_page_is_served_and_may_load_only_from_here(name: str, kind: str) -> None:
    """Each file has its type, and a policy that allows no script of anybody else."""
    async with chat_app(Support().flow) as app, caller(app) as client:
        answer = await client.get(f"{PATH}/{name}")
    assert answer.status_code == 200
    assert kind in answer.headers["content-type"]
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-frame-options"] == "DENY"


async def test_the_page_has_no_script_or_style_within_it() -> None:
    """Its policy would not run them."""
    async with chat_app(Support().flow) as app, caller(app) as client:
        page = (await client.get(f"{PATH}/")).text
        script = (await client.get(f"{PATH}/chat.js")).text
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


async def test_the_address_without_a_slash_leads_to_the_page() -> None:
    """Relative to where it is, so that an application may be mounted anywhere."""
    async with chat_app(Support().flow) as app, caller(app) as client:
        answer = await client.get(PATH)
    assert (answer.status_code, answer.headers["location"]) == (307, "support/")


async def test_a_chat_can_be_mounted_below_another_address() -> None:
    """The page, its files and messages are found there."""
    support = Support()
    support.go_on()
    async with chat_app(support.flow) as app:
        host = Starlette(routes=[Mount("/api", app)])
        client = httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url=f"http://{HOST}/api")
        async with client:
            client.headers["x-user"] = "ada"
            answers = [await client.get(f"{PATH}/{name}") for name in ("", "chat.js")]
            answers.append(await client.post(f"{PATH}/messages", json={"text": "hello"}))
    assert [answer.status_code for answer in answers] == [200, 200, 202]


async def test_there_is_no_page_where_none_is_wanted() -> None:
    """The chat is served all the same."""
    support = Support()
    support.go_on()
    async with chat_app(support.flow, page=False) as app, caller(app) as client:
        assert (await client.get(f"{PATH}/")).status_code == 404
        assert (await client.post(f"{PATH}/messages", json={"text": "hello"})).status_code == 202
