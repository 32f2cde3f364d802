"""The door: whoever is not known does not get in, whatever they ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from starlette.routing import Route

from standfast.errors import InvalidFlowError
from standfast.flows.arrival import Principal
from standfast.transports.authentication import BearerTokens, new_token, token_digest
from standfast.transports.loopback import host_of, is_loopback
from standfast.transports.webhooks import Unsigned, Webhook
from tests.unit.transports.fakes import Served, post

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

ADA = Principal("acme", "ada", frozenset({"operator"}))
TOKEN = "sf_a-token-of-the-tests"  # noqa: S105 -- made up for the tests
TOKENS = {token_digest(TOKEN): ADA}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
ECHO, HELLO = "/flows/chat/echo", {"text": "hello"}
FAR = ("203.0.113.9", "http://api.example")


def guarded(**options: Any) -> Served:
    """Return an application that takes tokens."""
    webhook = Webhook("letters", Unsigned(), post)
    return Served(authenticate=BearerTokens(TOKENS), webhooks=[webhook], **options)


OPEN = {"/health", "/webhooks/letters"}
"""What takes no credentials, each in full: webhooks are signed, and health tells nothing."""


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_every_route_needs_credentials(method: str) -> None:
    """Each route there is, by every method, and what is no route as well."""
    app = guarded()
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    assert len(paths) == len(app.routes) >= 6
    async with app.client(*FAR) as client:
        for path in {*paths, "/", "/nothing", "/health/", "/healthx", "/x/health", "/webhooks/letters/"} - OPEN:
            answer = await client.request(method, path.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, path
            assert method == "HEAD" or answer.json()["title"]
    assert app.dispatching.arrivals == []


async def test_a_websocket_needs_credentials_too() -> None:
    """It is refused with 401 where the server can say so, and closed where it cannot."""
    app = guarded()
    extensions: dict[str, Any]
    for extensions in ({"websocket.http.response": {}}, {}):
        sent: list[dict[str, Any]] = []
        scope = {"type": "websocket", "path": "/flows/chat/echo", "headers": [], "extensions": extensions}
        await app.app(scope, asyncio.Queue().get, _collects(sent))
        assert sent[0]["type"] == ("websocket.http.response.start" if extensions else "websocket.close")
        assert sent[0].get("status", 1008 - sent[0].get("code", 0)) in (401, 0)


def _collects(sent: list[dict[str, Any]]) -> Any:
    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    return send


async def test_credentials_become_the_principal() -> None:
    """The tenant, the user and the roles come from the token, and from nothing else."""
    app = guarded()
    async with app.client(*FAR) as client:
        forged = BEARER | {"X-Tenant": "evil", "X-User": "root"}
        assert (await client.post(ECHO, json=HELLO | {"tenant": "evil"}, headers=forged)).status_code == 200
    assert app.dispatching.arrivals[0].principal == ADA


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN, f"Bearer {token_digest(TOKEN)}"]
)
async def test_every_bad_token_gets_the_same_answer(header: str) -> None:
    """Its digest is not a token either: whoever reads the configuration cannot sign in with it."""
    async with guarded().client(*FAR) as client:
        answer = await client.post(ECHO, json=HELLO, headers={"Authorization": header} if header else {})
        nothing = await client.post(ECHO, json=HELLO)
    assert (answer.status_code, answer.json()) == (401, nothing.json())
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_whoever_guesses_is_slowed_down_and_locks_nobody_out() -> None:
    """After so many tokens that nobody has it is 429; one that holds is still taken."""
    app = Served(authenticate=BearerTokens(TOKENS, failures=3))
    async with app.client(*FAR) as client:
        guesses = [
            (await client.get("/openapi.json", headers={"Authorization": f"Bearer {n}"})).status_code for n in range(5)
        ]
        assert (await client.get("/openapi.json", headers=BEARER)).status_code == 200
    async with app.client("203.0.113.10", FAR[1]) as other:
        assert (await other.get("/openapi.json", headers={"Authorization": "Bearer 9"})).status_code == 401
    assert guesses == [401, 401, 401, 429, 429]


async def test_a_request_of_another_tenant_is_not_there() -> None:
    """It looks like one that never was, in every way it can be asked for."""
    bob = new_token()
    app = Served(authenticate=BearerTokens(TOKENS | {token_digest(bob): Principal("other", "bob")}))
    async with app.client(*FAR) as client:
        await client.post("/flows/chat/post", json={}, headers=BEARER)
        theirs = {"Authorization": f"Bearer {bob}"}
        for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/events")]:
            real = await client.request(method, f"/requests/r1{path}", headers=theirs)
            none = await client.request(method, f"/requests/r9{path}", headers=theirs)
            assert (real.status_code, real.text.replace("r1", "r9")) == (404, none.text)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_of_ones_own_says_who_asks(*, is_async: bool) -> None:
    """Plain or async; it sees the request without its body."""

    def who(connection: HTTPConnection) -> Principal | None:
        return Principal("acme", connection.headers.get("x-user", "")) if "x-user" in connection.headers else None

    async def who_later(connection: HTTPConnection) -> Principal | None:
        return who(connection)

    app = Served(authenticate=who_later if is_async else who)
    async with app.client(*FAR) as client:
        assert (await client.post(ECHO, json=HELLO)).status_code == 401
        assert (await client.post(ECHO, json=HELLO, headers={"X-User": "ada"})).status_code == 200
    assert app.dispatching.arrivals[0].principal == Principal("acme", "ada")


@pytest.mark.parametrize("odd", [ValueError("canary"), "ada", True])
async def test_a_function_that_fails_lets_nobody_in(odd: object) -> None:
    """500, and not a word about why."""

    def who(connection: HTTPConnection) -> Any:
        del connection
        if isinstance(odd, Exception):
            raise odd
        return odd

    app = Served(authenticate=who)
    async with app.client(*FAR) as client:
        answer = await client.post(ECHO, json=HELLO)
    assert answer.status_code == 500
    assert "canary" not in answer.text
    assert app.dispatching.arrivals == []


# --- without authentication ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "base", "headers"),
    [
        ("203.0.113.9", "http://localhost", {}),
        ("127.0.0.1", "http://api.example", {}),
        ("127.0.0.1", "http://localhost", {"X-Forwarded-For": "203.0.113.9"}),
        ("127.0.0.1", "http://localhost", {"Forwarded": "for=203.0.113.9"}),
        ("", "http://localhost", {}),
    ],
)
async def test_without_authentication_only_this_machine_is_served(
    address: str, base: str, headers: dict[str, str]
) -> None:
    """Not others, not what a proxy hands on, and not a page that points a name of its own at this machine."""
    app = Served()
    async with app.client(address, base) as client:
        answer = await client.post(ECHO, json=HELLO, headers=headers)
    assert (answer.status_code, app.dispatching.arrivals) == (401, [])


@pytest.mark.parametrize(("address", "base"), [("127.0.0.1", "http://localhost:8000"), ("::1", "http://[::1]:8000")])
async def test_this_machine_is_served_without_authentication(address: str, base: str) -> None:
    """So it can be tried out."""
    async with Served().client(address, base) as client:
        assert (await client.post(ECHO, json=HELLO)).status_code == 200


# --- hosts and origins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("api.example", 200),
        ("API.example:8443", 200),
        ("eu.api.example", 200),
        ("evil.example", 421),
        ("xapi.example", 421),
        ("", 421),
        ("api.example.evil", 421),
    ],
)
async def test_only_the_named_hosts_are_served(host: str, status: int) -> None:
    """A name that somebody else points here is refused."""
    app = guarded(hosts=("api.example", "*.api.example"))
    async with app.client(*FAR) as client:
        answer = await client.post(ECHO, json=HELLO, headers=BEARER | {"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://[::1", 403),
        ("http://", 403),
        ("http://api.example", 200),
        ("https://app.example", 200),
        ("https://evil.example", 403),
        ("https://app.example.evil", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_only_trusted_pages_may_use_it(origin: str, status: int) -> None:
    """Its own, and those that were named."""
    app = guarded(origins=("https://app.example",))
    async with app.client(*FAR) as client:
        answer = await client.post(ECHO, json=HELLO, headers=BEARER | {"Origin": origin})
    assert answer.status_code == status


async def test_every_answer_tells_browsers_to_be_careful() -> None:
    """Also a refusal."""
    async with guarded().client(*FAR) as client:
        for answer in (await client.get("/openapi.json", headers=BEARER), await client.get("/openapi.json")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert "access-control-allow-origin" not in answer.headers
            assert "server" not in answer.headers


async def test_health_tells_nothing_but_that() -> None:
    """It needs no credentials, and says when the application is about to close."""
    app = guarded()
    async with app.client(*FAR) as client:
        well = await client.get("/health")
        app.closing.set()
        closing = await client.get("/health")
    assert (well.status_code, well.json()) == (200, {"status": "ok"})
    assert (closing.status_code, closing.json()) == (503, {"status": "closing"})


# --- tokens and addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [TOKEN, "sha256:zz", "", "md5:00"])
def test_a_token_itself_is_not_kept(named: str) -> None:
    """Whoever writes it down in place of its digest is told, and it is not shown."""
    with pytest.raises(InvalidFlowError) as caught:
        BearerTokens({named: ADA})
    assert not named or named not in str(caught.value)


def test_new_tokens_cannot_be_guessed() -> None:
    """They have 256 random bits, and are shown by nothing."""
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 46
    assert "sha256" not in repr(BearerTokens(TOKENS))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((local, True) for local in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "app.localhost")),
        *((other, False) for other in ("10.0.0.1", "", "localhost.evil", "0.0.0.0", "::")),  # noqa: S104 -- an address like any other
    ],
)
def test_loopback_is_this_machine(address: str, expected: bool) -> None:  # noqa: FBT001 -- a value under test
    """And not every address that listens here."""
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    ("header", "host"), [("A.example:80", "a.example"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("", ""), ("x", "x")]
)
def test_a_host_is_found_in_its_header(header: str, host: str) -> None:
    """Without port and brackets."""
    assert host_of(header) == host
