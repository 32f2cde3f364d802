"""An authorization server for tests: keys, and tokens that hold or nearly do."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import standfast as sf
from standfast.clock import SYSTEM_CLOCK

ISSUER: Final = "https://id.example"
AUDIENCE: Final = "http://localhost/mcp"
KEY_ID: Final = "first"


def private(name: str = KEY_ID, bits: int = 2_048) -> rsa.RSAPrivateKey:
    """Return a private key, the same for the same name."""
    return _made(name, bits)


@cache
def _made(name: str, bits: int) -> rsa.RSAPrivateKey:
    del name
    return rsa.generate_private_key(65_537, bits)


@cache
def private_curve() -> ec.EllipticCurvePrivateKey:
    """Return a key on a curve."""
    return ec.generate_private_key(ec.SECP256R1())


def public(name: str = KEY_ID, bits: int = 2_048, **facts: Any) -> dict[str, Any]:
    """Return a public key as the issuer publishes it."""
    known: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private(name, bits).public_key()))
    known.pop("key_ops", None)
    return known | {"kid": name, "use": "sig", "alg": "RS256"} | facts


def public_curve(name: str = "curve") -> dict[str, Any]:
    """Return the key on a curve as the issuer publishes it."""
    known: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private_curve().public_key()))
    known.pop("key_ops", None)
    return known | {"kid": name, "use": "sig"}


def claims(**changed: Any) -> dict[str, Any]:
    """Return what a token says; None leaves something out."""
    now = SYSTEM_CLOCK.wall() // 1_000_000
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "org": "acme",
        "scope": "tools",
        "iat": now,
        "exp": now + 300,
    }
    return {name: value for name, value in (usual | changed).items() if value is not None}


def token(key: Any = None, algorithm: str = "RS256", header: dict[str, Any] | None = None, **changed: Any) -> str:
    """Return a signed token."""
    told = {"kid": KEY_ID} if header is None else header
    return jwt.encode(claims(**changed), key or private(), algorithm, headers=told)


def tokens(**changed: Any) -> sf.web.OAuthTokens:
    """Return what checks them."""
    usual: dict[str, Any] = {"issuer": ISSUER, "audience": AUDIENCE, "keys": {"keys": [public()]}, "scopes": ["tools"]}
    return sf.web.OAuthTokens(**(usual | {"tenant": "org"} | changed))
