"""The edge: whose word is taken about where a request comes from, and how many connections there are."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.errors import DeclarationError, HttpError
from standfast.web.edge import EDGE, OPEN, PRIVATE, Edge, EdgeLimits

PROXY, CLIENT = "10.0.0.7", "203.0.113.9"


def passed(edge: Edge, *headers: tuple[str, str], peer: str = PROXY) -> dict[str, Any]:
    """Return the scope of a request that came over an edge."""
    pairs = [(name.lower().encode(), value.encode()) for name, value in (("Host", "own.example"), *headers)]
    client = (peer, 1) if peer else None
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": client, "headers": pairs}
    edge.pass_on(scope)
    return scope


@pytest.mark.parametrize(
    ("headers", "address", "scheme", "host"),
    [
        ([("X-Forwarded-For", CLIENT)], CLIENT, "http", "own.example"),
        ([("X-Forwarded-For", f"1.1.1.1, {CLIENT}")], CLIENT, "http", "own.example"),
        ([("X-Forwarded-For", f"1.1.1.1, {CLIENT}, 10.0.0.8")], CLIENT, "http", "own.example"),
        ([("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", CLIENT)], CLIENT, "http", "own.example"),
        ([("X-Forwarded-For", f"{CLIENT}:4711")], CLIENT, "http", "own.example"),
        ([("X-Forwarded-For", "[2001:db8::1]:80")], "2001:db8::1", "http", "own.example"),
        ([("X-Forwarded-For", "1.1.1.1, unknown")], PROXY, "http", "own.example"),
        ([("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "evil, shop.example")], PROXY, "https", "shop.example"),
        ([("X-Forwarded-Proto", "gopher")], PROXY, "http", "own.example"),
        ([("Forwarded", f'for=1.1.1.1, for="{CLIENT}:1";proto=https;host=a.example')], CLIENT, "https", "a.example"),
        ([("Forwarded", "for=1.1.1.1"), ("X-Forwarded-For", CLIENT)], CLIENT, "http", "own.example"),
    ],
)
def test_a_named_proxy_says_where_a_request_comes_from(
    headers: list[tuple[str, str]], address: str, scheme: str, host: str
) -> None:
    """The last address that is no named proxy counts: what stands before it, the client has said."""
    scope = passed(Edge(proxies=["10.0.0.0/8"]), *headers)
    assert (scope["client"][0], scope["scheme"], dict(scope["headers"])[b"host"]) == (address, scheme, host.encode())


@pytest.mark.parametrize("peer", ["127.0.0.1", "11.0.0.7", ""])
def test_nobody_else_is_believed_or_even_seen(peer: str) -> None:
    """What they say is taken out of the headers."""
    said = [("X-Forwarded-For", CLIENT), ("Forwarded", "for=x"), ("X-Real-IP", CLIENT), ("X-Kept", "1")]
    scope = passed(Edge(proxies=["10.0.0.0/8"]), *said, peer=peer)
    assert [name for name, _ in scope["headers"]] == [b"host", b"x-kept"]
    assert (scope["client"] or ("",))[0] == peer


def test_a_private_edge_is_private_unless_a_proxy_shows() -> None:
    """One that was named brings requests of others, and so does one that gives itself away."""
    private = Edge(is_private=True)
    assert passed(private, peer="")[EDGE] == PRIVATE
    assert passed(private, ("Via", "1.1 proxy"), peer="")[EDGE] == OPEN
    assert passed(private, ("X-Forwarded-For", CLIENT), peer="")[EDGE] == OPEN
    named = Edge(proxies=["unix"], is_private=True)
    assert passed(named, ("X-Forwarded-For", CLIENT), peer="")["client"] == (CLIENT, 0)
    assert passed(named, peer="")[EDGE] == OPEN


def test_connections_are_counted_in_all_and_by_address() -> None:
    """An address of IPv6 counts as its /64; a named proxy has no share, and neither has a unix socket."""
    edge = Edge(EdgeLimits(connections=4, per_address=2), ["10.0.0.7"])
    for address in ("2001:db8::1", "2001:db8::2"):
        edge.enter(address)
    with pytest.raises(HttpError, match="from this address"):
        edge.enter("2001:db8::3")
    edge.leave("2001:db8::1")
    for _ in range(3):
        edge.enter(PROXY)
    with pytest.raises(HttpError):
        edge.enter("")
    for _ in range(3):
        edge.leave(PROXY)
    edge.leave("2001:db8::2")
    assert edge.open == 0


@pytest.mark.parametrize("given", [{"headers": 0}, {"connections": 1.5}, {"per_address": 0}, {"header_bytes": True}])
def test_a_limit_that_is_none_is_refused(given: dict[str, Any]) -> None:
    """Where it is said."""
    with pytest.raises(DeclarationError):
        EdgeLimits(**given)


@pytest.mark.parametrize("named", ["", "localhost", "10.0.0.0/33", "10.0.0"])
def test_a_proxy_is_named_by_its_address(named: str) -> None:
    """Names can be pointed elsewhere."""
    with pytest.raises(DeclarationError):
        Edge(proxies=[named])
