"""The door: whoever is not known does not get in, whatever they ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from starlette.routing import Route

from standfast.errors import DeclarationError
from standfast.flows.request import Principal
from standfast.log_budget import BURST
from standfast.web.asgi import host_of, is_loopback
from standfast.web.auth import OWNER, BearerTokens, OwnToken, new_token, token_digest
from standfast.web.signatures import GitHub, Unsigned
from standfast.web.webhooks import Webhook
from tests.unit.web.fakes import OWN, Served, post

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
    webhooks = [Webhook("letters", Unsigned(), post), Webhook("signed", GitHub("a secret of the tests, long"), post)]
    return Served(authenticate=BearerTokens(TOKENS), webhooks=webhooks, **options)


OPEN = {"/health", "/webhooks/signed"}
"""What takes no credentials, each in full: webhooks are signed, and health tells nothing."""


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_every_route_needs_credentials(method: str) -> None:
    """Each route there is, by every method, and what is no route as well."""
    app = guarded()
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    assert len(paths) == len(app.routes) >= 6
    async with app.client(*FAR) as client:
        for path in {*paths, "/", "/nothing", "/health/", "/healthx", "/x/health", "/webhooks/signed/"} - OPEN:
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


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "203.0.113.9", ""])
@pytest.mark.parametrize("base", ["http://localhost", "http://api.example"])
async def test_where_a_request_comes_from_is_no_credential(address: str, base: str) -> None:
    """Whatever stands between sends from this machine for anybody: the token alone lets in, from anywhere."""
    app = Served()
    async with app.client(address, base) as client:
        without = await client.post(ECHO, json=HELLO, headers={"Authorization": ""})
        wrong = await client.post(ECHO, json=HELLO, headers={"Authorization": f"Bearer {new_token()}"})
        assert app.dispatching.arrivals == []
        right = await client.post(ECHO, json=HELLO)
    assert (without.status_code, wrong.status_code, right.status_code) == (401, 401, 200)
    assert app.dispatching.arrivals[0].principal == OWNER


async def test_a_browser_that_brings_the_token_gets_a_cookie_and_an_address_without_it() -> None:
    """No script can read it, no other site makes the browser send it, and ports of one host have one each."""
    app = Served()
    async with app.client(base="http://localhost:8000") as client:
        client.headers.pop("authorization")
        answer = await client.get("/openapi.json", params={"token": OWN.token, "a": "b c"})
        cookie = answer.headers["set-cookie"]
        assert (answer.status_code, answer.headers["location"]) == (303, "/openapi.json?a=b+c")
        assert cookie.startswith(f"standfast-token-8000={OWN.token};")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert (await client.get("/openapi.json")).status_code == 200
        elsewhere = {"Origin": "http://localhost:3000"}
        assert (await client.post(ECHO, json=HELLO, headers=elsewhere)).status_code == 403
        assert (await client.post(ECHO, json=HELLO, headers={"Authorization": "Bearer x"})).status_code == 401
    async with app.client(base="http://localhost:8001") as other:
        other.headers.pop("authorization")
        assert (await other.get("/openapi.json", headers={"Cookie": cookie})).status_code == 401


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("GET", "token=wrong"),
        ("GET", "token="),
        ("GET", "token=%s&token=x"),
        ("GET", "x=token=%s"),
        ("POST", "token=%s"),
    ],
)
async def test_a_token_in_an_address_is_taken_from_a_browser_only(method: str, query: str) -> None:
    """That is, to be exchanged for a cookie; it calls nothing."""
    app = Served()
    async with app.client() as client:
        client.headers.pop("authorization")
        answer = await client.request(method, f"{ECHO}?{query.replace('%s', OWN.token)}", json=HELLO)
    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    assert OWN.token not in answer.text


async def test_an_address_with_two_slashes_leads_to_no_other_host() -> None:
    """What the browser is sent on to is below this one."""
    app = Served()
    sent: list[dict[str, Any]] = []
    query = f"token={OWN.token}".encode()
    paths = {"path": "//evil.example/x", "raw_path": b"//evil.example/x", "query_string": query}
    scope = {"type": "http", "method": "GET", "headers": [(b"host", b"localhost")], **paths}
    await app.app(scope, asyncio.Queue().get, _collects(sent))
    assert dict(sent[0]["headers"])[b"location"] == b"/evil.example/x"


@pytest.mark.parametrize(
    "token", ["", "short", "with a space in it, which is long", "ümlauts are not taken here", "a\nb" * 10]
)
def test_a_token_that_can_be_guessed_or_sent_in_two_ways_is_refused(token: str) -> None:
    """And it is not shown."""
    with pytest.raises(DeclarationError) as caught:
        OwnToken().token = token
    assert not token or token not in str(caught.value)


async def test_refused_credentials_are_logged_within_a_budget(caplog: pytest.LogCaptureFixture) -> None:
    """A few of each kind, with the address and never with what was sent; whoever tries for long fills no disk."""
    app = Served(authenticate=BearerTokens(TOKENS, failures=1_000))
    async with app.client(*FAR) as client:
        for number in range(100):
            await client.get("/openapi.json", headers={"Authorization": f"Bearer canary-{number}"})
        await client.get("/openapi.json")
    lines = [record.getMessage() for record in caplog.records]
    assert 1 < len(lines) <= BURST + 2
    assert lines[0] == f"event=credentials-refused address={FAR[0]} status=401"
    assert lines[-1] == f"event=credentials-missing address={FAR[0]} status=401"
    assert "canary" not in caplog.text


# --- trailers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("authenticate", "status"), [(None, 200), (BearerTokens(TOKENS), 200), (lambda _: ADA, 411)])
async def test_a_chunked_body_by_a_server_that_may_mix_up_trailers_is_not_trusted(
    authenticate: Any, status: int
) -> None:
    """A function of one's own may rely on headers that a proxy deletes, and trailers are not deleted by it."""

    async def pieces() -> Any:
        yield b'{"text":"hello"}'

    app = Served(authenticate=authenticate)
    async with app.client(*FAR) as client:
        headers = {"content-type": "application/json"} | (BEARER if authenticate is not None else {})
        answer = await client.post(ECHO, content=pieces(), headers=headers)
    assert answer.status_code == status
    assert len(app.dispatching.arrivals) == (status == 200)


async def test_what_comes_after_the_headers_is_no_header() -> None:
    """A server that goes on writing into the list of headers changes nothing that was decided on, or is."""
    seen: list[int] = []

    async def who(connection: HTTPConnection) -> Principal:
        scope["headers"].append((b"x-user", b"root"))
        await asyncio.sleep(0)
        seen.append(len(connection.headers))
        return ADA

    app, sent = Served(authenticate=who), list[dict[str, Any]]()
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/openapi.json", "query_string": b""}
    scope["headers"] = [(b"host", b"localhost")]
    await app.app(scope, asyncio.Queue().get, _collects(sent))
    assert (sent[0]["status"], seen) == (200, [1])


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
    with pytest.raises(DeclarationError) as caught:
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
