"""Access tokens: only what the issuer has signed for this application, now, lets anybody in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.requests import HTTPConnection

import standfast as sf
from standfast.clock import SYSTEM_CLOCK
from standfast.errors import AuthenticationError, DeclarationError, ForbiddenError, MissingExtraError
from standfast.web import oauth as module
from tests.unit.web.issuer import (
    AUDIENCE,
    KEY_ID,
    claims,
    private,
    private_curve,
    public,
    public_curve,
    token,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3_600
PEM = private().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def connection(value: str, **scope: Any) -> HTTPConnection:
    """Return a request with something in ``Authorization``."""
    headers = [(b"authorization", value.encode())] if value else []
    return HTTPConnection({"type": "http", "headers": headers, "query_string": b"", **scope})


async def principal_of(text: str, **options: Any) -> sf.Principal:
    """Return who has a token."""
    return await tokens(**options)(connection(f"Bearer {text}"))


def part(value: object) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def by_hand(header: dict[str, Any], signature: str = "") -> str:
    """Return a token that no library would make."""
    return f"{part(header)}.{part(claims())}.{signature}"


def tampered() -> str:
    """Return a token that was changed after it was signed."""
    head, _, signature = token().split(".")
    return f"{head}.{part(claims(sub='root'))}.{signature}"


def confused() -> str:
    """Return a token that is signed with the public key, as if that were a secret."""
    signed = f"{part({'alg': 'HS256', 'kid': KEY_ID})}.{part(claims())}"
    digest = hmac.new(PEM, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def at(seconds: int) -> int:
    """Return an instant from now."""
    return SYSTEM_CLOCK.wall() // 1_000_000 + seconds


REFUSED: dict[str, tuple[str, Callable[[], str]]] = {
    "tampered": ("InvalidSignatureError", tampered),
    "signed with another key": ("InvalidSignatureError", lambda: token(private("other"))),
    "of another issuer": ("InvalidIssuerError", lambda: token(iss="https://evil.example")),
    "of no issuer": ("MissingRequiredClaimError", lambda: token(iss=None)),
    "for another audience": ("InvalidAudienceError", lambda: token(aud="https://other.example/mcp")),
    "for an audience that begins alike": ("InvalidAudienceError", lambda: token(aud=f"{AUDIENCE}.evil.example")),
    "for no audience": ("MissingRequiredClaimError", lambda: token(aud=None)),
    "expired": ("ExpiredSignatureError", lambda: token(exp=at(-HOUR))),
    "without an end": ("MissingRequiredClaimError", lambda: token(exp=None)),
    "not valid yet": ("ImmatureSignatureError", lambda: token(nbf=at(HOUR))),
    "issued in the future": ("ImmatureSignatureError", lambda: token(iat=at(HOUR))),
    "not signed": ("algorithm", lambda: by_hand({"alg": "none", "kid": KEY_ID})),
    "not signed, in other letters": ("algorithm", lambda: by_hand({"alg": "nOnE", "kid": KEY_ID})),
    "signed with the public key as a secret": ("algorithm", confused),
    "signed by an algorithm that is not allowed": ("algorithm", lambda: token(algorithm="RS512")),
    "signed by an algorithm that is no text": ("algorithm", lambda: by_hand({"alg": ["RS256"], "kid": KEY_ID})),
    "of a key that nobody knows": ("unknown key", lambda: token(header={"kid": "second"})),
    "with an odd key id": ("InvalidTokenError", lambda: by_hand({"alg": "RS256", "kid": {"a": 1}})),
    "with a demand that is not understood": (
        "InvalidTokenError",
        lambda: token(header={"kid": KEY_ID, "crit": ["x"], "x": 1}),
    ),
    "of another kind": ("kind", lambda: token(header={"kid": KEY_ID, "typ": "logout+jwt"})),
    "bound to a key": ("bound to a key", lambda: token(cnf={"jkt": "x"})),
    "without a user": ("claims", lambda: token(sub=None)),
    "with an empty user": ("claims", lambda: token(sub="")),
    "without a tenant": ("claims", lambda: token(org=None)),
    "with a tenant that is no text": ("claims", lambda: token(org=["acme"])),
    "with a tenant that cannot be one": ("claims", lambda: token(org="a\nb")),
    "no token": ("DecodeError", lambda: "hello"),
    "empty": ("DecodeError", lambda: ".."),
    "too long": ("too long", lambda: token(padding="x" * 20_000)),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_token_is_refused_that_is(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each with the same words: what was wrong is nobody's business but the log's."""
    caplog.set_level(logging.INFO)
    reason, make = REFUSED[case]
    with pytest.raises(AuthenticationError) as caught:
        await principal_of(make())
    assert reason in caplog.text
    assert 'error="invalid_token"' in caught.value.challenge
    assert str(caught.value) == "an access token is needed that holds here"


async def test_what_a_token_says_is_who_asks() -> None:
    """The tenant, the user and the roles come from its claims, and from nothing else."""
    scope = "tools operator standfast: standfast:clerk standfast:a:b"
    asked = connection(f"bearer {token(scope=scope)}", path="/evil", path_params={"tenant": "evil"})
    assert await tokens()(asked) == sf.Principal("acme", "ada", frozenset({"clerk", "a:b"}))


@pytest.mark.parametrize("claim", ["scope", "scp"])
async def test_a_scope_is_a_role_by_its_prefix_only(claim: str) -> None:
    """Whatever the authorization server means by a bare one, and whichever claim the scopes are in."""
    known: dict[str, Any] = {"scope": None} | {claim: "tools admin operator viewer standfast:viewer desk/admin"}
    assert (await principal_of(token(**known), roles=claim)).roles == {"viewer"}
    assert (await principal_of(token(**known), scope_prefix="desk/")).roles == {"admin"}


async def test_claims_are_found_where_the_declaration_says() -> None:
    """By other names, and inside of others; lists are as good as words."""
    known: dict[str, Any] = {"email": "a@b", "realm": {"roles": ["clerk", 7]}, "scp": ["tools"], "scope": None}
    found = await principal_of(token(**known), user="email", roles=("realm", "roles"), tenant=None)
    assert found == sf.Principal("default", "a@b", frozenset({"clerk"}))


async def test_a_missing_scope_is_403() -> None:
    """The challenge says which is needed, so that the client can ask for it."""
    with pytest.raises(ForbiddenError) as caught:
        await principal_of(token(scope="other"), scopes=["tools", "more"])
    assert 'error="insufficient_scope", scope="tools more"' in caught.value.challenge


@pytest.mark.parametrize("said", ["", "Bearer", "Bearer  ", "Basic abc"])
async def test_without_a_token_the_challenge_says_where_to_get_one(said: str) -> None:
    """And that nothing was wrong with one."""
    with pytest.raises(AuthenticationError) as caught:
        await tokens()(connection(said))
    where = "http://localhost/.well-known/oauth-protected-resource/mcp"
    assert caught.value.challenge == f'Bearer scope="tools", resource_metadata="{where}"'


async def test_clocks_may_differ_a_little() -> None:
    """As far as the declaration says, and no farther."""
    late = token(exp=at(-10), nbf=at(10))
    assert (await principal_of(late)).user == "ada"
    with pytest.raises(AuthenticationError):
        await principal_of(late, leeway=0)


async def test_keys_on_curves_and_a_single_key_without_an_id_work() -> None:
    """A key is for its own algorithm only."""
    both = {"keys": [public(), public_curve()]}
    signed = token(private_curve(), "ES256", {"kid": "curve"})
    assert (await principal_of(signed, keys=both)).user == "ada"
    assert (await principal_of(token(header={}))).user == "ada"
    with pytest.raises(AuthenticationError):
        await principal_of(token(private_curve(), "ES256", {"kid": KEY_ID}), keys=both)


async def test_a_token_is_taken_from_the_header_only() -> None:
    """An address gets into logs."""
    asked = connection("", query_string=f"access_token={token()}".encode())
    with pytest.raises(AuthenticationError):
        await tokens()(asked)


async def test_nothing_of_a_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither of one that holds nor of one that does not; why it does not is."""
    caplog.set_level(logging.DEBUG)
    good, bad = token(), token(exp=at(-HOUR))
    await principal_of(good)
    with pytest.raises(AuthenticationError):
        await principal_of(bad)
    assert "reason=ExpiredSignatureError" in caplog.text
    assert not any(piece in caplog.text for text in (good, bad) for piece in text.split("."))


WRONG: dict[str, dict[str, Any]] = {
    "a secret": {"algorithms": ["RS256", "HS256"]},
    "no signature": {"algorithms": ["none"]},
    "no algorithm": {"algorithms": []},
    "an issuer that can be changed on the way": {"issuer": "http://id.example"},
    "keys that can be changed on the way": {"keys": "http://id.example/keys"},
    "keys in a file": {"keys": "file:///etc/keys"},
    "no keys": {"keys": {"keys": []}},
    "a shared secret as a key": {"keys": {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": KEY_ID}]}},
    "a short key": {"keys": {"keys": [public("short", 1_024)]}},
    "a key for something else": {"keys": {"keys": [public(use="enc")]}},
    "an audience that is no address": {"audience": "api"},
    "a fragment": {"audience": "https://api.example/mcp#x"},
    "credentials in an address": {"audience": "https://a:b@api.example/mcp"},
    "a quote": {"audience": 'https://api.example/"x'},
    "an odd scope": {"scopes": ['a"b']},
    "no prefix": {"scope_prefix": ""},
    "an odd prefix": {"scope_prefix": "a b"},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_declaration_is_refused_with(case: str) -> None:
    """Before anything is served."""
    with pytest.raises(DeclarationError, match="OAuthTokens"):
        tokens(**WRONG[case])


def test_a_private_key_that_was_published_by_mistake_is_not_kept() -> None:
    """Only its public half is needed, and shown by nothing."""
    jwk: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private()))
    made = tokens(keys={"keys": [jwk | {"kid": KEY_ID, "key_ops": None}]})
    assert repr(made) == f"<OAuthTokens of https://id.example for {AUDIENCE}>"


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_what_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either library no token could be checked, so nothing is declared."""
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else name)
    with pytest.raises(MissingExtraError, match=re.escape("standfast[oauth]")):
        tokens()
