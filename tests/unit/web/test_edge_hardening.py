"""What is true of all transports together: nothing is read too early, nobody is called, no pattern can be made slow."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
import standfast.flows
import standfast.web

if TYPE_CHECKING:
    from collections.abc import Iterator

# The only way to see what a pattern is made of.
codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

SOURCES = [Path(package.__path__[0]) for package in (standfast.web, standfast.flows)]
CALLERS = {"urllib.request", "http.client", "httpx", "httpx2", "aiohttp", "requests", "socket", "smtplib", "subprocess"}

desk = sf.Flow("desk")


@desk.action
async def greet(request: sf.Request) -> str:
    """Greet."""
    return request.user


def app_of(**options: Any) -> sf.App:
    """Return an application with everything in it that has an address."""
    tokens = sf.web.BearerTokens({sf.web.token_digest("t"): sf.Principal("acme", "ada")})
    return sf.App("memory://", flows=[desk], tools=[desk], authenticate=tokens, **options)


@pytest.mark.parametrize("path", ["/flows/desk/greet", "/mcp", "/requests/x", "/nothing"])
@pytest.mark.parametrize("credentials", [(), ((b"authorization", b"Bearer wrong"),)])
async def test_nothing_of_a_body_is_read_before_it_is_known_who_asks(path: str, credentials: Any) -> None:
    """Whoever is not let in has had nothing read, parsed or run."""
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError(path)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"api.example"), (b"content-type", b"application/json"), *credentials]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "query_string": b"",
        "client": ("9.9.9.9", 1),
    }
    async with app_of() as app:
        await app(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_tools_are_served_under_their_names_and_to_their_pages_only() -> None:
    """A page that points its own name at this machine, or asks from elsewhere, gets nothing, whatever it has."""
    async with app_of(site=sf.web.Site(hosts=["api.example"])) as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, headers={"Authorization": "Bearer t"}) as client:
            answers = [
                await client.post("http://evil.example/mcp", json={}),
                await client.post("http://api.example/mcp", json={}, headers={"Origin": "http://evil.example"}),
                await client.post("http://api.example/mcp", json={}, headers={"Origin": "null"}),
            ]
    assert [answer.status_code for answer in answers] == [421, 403, 403]


async def test_credentials_are_not_read_from_an_address() -> None:
    """It gets into logs, histories and the headers of others."""
    async with app_of() as app, httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as client:
        for name in ("token", "access_token", "authorization", "key"):
            answer = await client.get("http://api.example/openapi.json", params={name: "t"})
            assert answer.status_code == 401


def test_nobody_is_called_but_for_keys_of_an_issuer() -> None:
    """What callers send cannot make an application ask another address: it asks none that was not declared."""
    found = {
        str(path.relative_to(source.parent))
        for source in SOURCES
        for path in source.rglob("*.py")
        if CALLERS & set(_imported(path))
    }
    assert found == {"web/oauth.py"}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_pattern_has_a_repetition_within_a_repetition() -> None:
    """So the time that one takes grows with the text, and no text can be made to take for ever."""
    patterns = dict(_patterns())
    assert len(patterns) >= 5
    assert _nests(parser.parse("(a+)+"), inside=False)
    for name, pattern in patterns.items():
        assert not _nests(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE), inside=False), name


def _patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for package in (standfast.web, standfast.flows):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    yield f"{found.name}.{name}", value


def _nests(parts: Any, *, inside: bool) -> bool:
    """Tell whether something that may be repeated without end has another such thing within it."""
    for kind, value in parts:
        is_endless = kind in (codes.MAX_REPEAT, codes.MIN_REPEAT) and value[1] is codes.MAXREPEAT
        if is_endless and inside:
            return True
        if any(_nests(each, inside=inside or is_endless) for each in _within(value)):
            return True
    return False


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _within(each)
