"""Access tokens that an authorization server has issued for this application."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from standfast.durations import seconds
from standfast.errors import (
    AccessTokenError,
    InsufficientScopeError,
    InvalidArrivalError,
    InvalidFlowError,
    MissingExtraError,
)
from standfast.flows.arrival import Principal
from standfast.logs import as_logfmt
from standfast.transports.oauth.keys import SAFE, checked_address, keys_from
from standfast.transports.oauth.metadata import address, challenge, document, paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import HTTPConnection

    from standfast.durations import Duration

Claim: TypeAlias = str | tuple[str, ...]
"""The name of a claim; several names lead into one that has others in it."""

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
LONGEST: Final = 16_384
"""Characters of a token."""

SCOPE: Final = "scope"
SCOPES: Final = (SCOPE, "scp")
PREFIX: Final = "standfast:"
"""What a scope begins with that is a role."""
_WHERE: Final = "OAuthTokens"
_KINDS: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_log: Final = logging.getLogger("standfast.transports")


class _RefusedError(Exception):
    """A token does not hold. It never leaves this module."""


@final
class OAuthTokens:
    """Callers send ``Authorization: Bearer`` and a signed token (JWT) of an authorization server that is trusted.

        authenticate=sf.OAuthTokens(
            issuer="https://id.example.com",
            audience="https://api.example.com/mcp",
            keys="https://id.example.com/.well-known/jwks.json",
            scopes=["tools"],
            tenant="org_id",
        )

    A token holds if it is signed with a key of the issuer by an algorithm that is allowed, was issued by that issuer
    for this application, has not expired, and names a user. What it says about the tenant, the user and the roles
    counts, and nothing else that is sent does. The application tells clients where to get one (RFC 9728), so that a
    client of the Model Context Protocol needs to know nothing but its address.

    Args:
        issuer: Who issues the tokens: their ``iss``, and where clients are sent for one.
        audience: The address of this application: their ``aud``. A token for anybody else is refused.
        keys: The public keys of the issuer: a JWK set, or its address. It is read when it is needed, kept for ten
            minutes, and read again when a token names a key that is not in it, at most once a minute.
        algorithms: By which a token may be signed. None with a shared secret.
        scopes: What every token has to have been given.
        tenant: The claim that names the tenant; tokens without it are refused. None: all are of the tenant ``default``.
        user: The claim that names the user.
        roles: The claim with the roles, as a list, or as text with spaces between them. By default they are the scopes
            that begin with ``scope_prefix``, without it: an action with ``roles=["orders.write"]`` needs the scope
            ``standfast:orders.write``. A scope without it is no role, since clients may ask for any scope that the
            authorization server knows, and what it means by ``admin`` need not be what is meant here.
        scope_prefix: What the scopes begin with that are roles.
        leeway: How much clocks may differ.

    Raises:
        InvalidFlowError: An address is not safe, an algorithm is not allowed, or there is no key.
        MissingExtraError: The library that checks signatures is not installed.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        *,
        issuer: str,
        audience: str,
        keys: Mapping[str, Any] | str,
        algorithms: Iterable[str] = ALGORITHMS,
        scopes: Iterable[str] = (),
        tenant: Claim | None = None,
        user: Claim = "sub",
        roles: Claim = SCOPE,
        scope_prefix: str = PREFIX,
        leeway: Duration = "30s",
    ) -> None:
        _need_the_library()
        allowed = frozenset(algorithms)
        if not allowed or not allowed <= SAFE:
            raise InvalidFlowError(_WHERE, f"algorithms must be some of {', '.join(sorted(SAFE))}")
        self.issuer: Final = checked_address(issuer, _WHERE, "issuer")
        self.audience: Final = checked_address(audience, _WHERE, "audience")
        self.scopes: Final = _checked_scopes(scopes)
        self._allowed, self._keys = allowed, keys_from(keys, allowed, _WHERE)
        self._tenant, self._user, self._roles = tenant, user, roles
        if not scope_prefix:
            raise InvalidFlowError(_WHERE, "scope_prefix is empty, and any scope would be a role; name a claim: roles=")
        [self._prefix] = _checked_scopes(scope_prefix)
        self._leeway: Final = seconds(leeway, what="leeway")
        self._audiences: Final = [audience.rstrip("/"), f"{audience.rstrip('/')}/"]

    def __repr__(self) -> str:
        return f"<OAuthTokens of {self.issuer} for {self.audience}>"

    @property
    def metadata(self) -> dict[str, Any]:
        """What clients are told about where to get a token."""
        return document(self.audience, self.issuer, self.scopes)

    @property
    def metadata_paths(self) -> tuple[str, ...]:
        """Where they are told so, without credentials."""
        return paths(self.audience)

    async def __call__(self, connection: HTTPConnection) -> Principal:
        """Return whose token it is.

        Raises:
            AccessTokenError: There is none, or it does not hold.
            InsufficientScopeError: It holds, and lacks a scope.
            SigningKeysUnavailableError: Nobody can tell now whether it holds.
        """
        where = address(self.audience, connection.scope.get("root_path", ""))
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise AccessTokenError(challenge(where, self.scopes))
        try:
            claims = await self._verified(token.strip())
            principal = self._principal(claims)
        except _RefusedError as problem:
            _log.info("%s", as_logfmt({"event": "token-refused", "reason": str(problem)}))
            raise AccessTokenError(challenge(where, self.scopes, "invalid_token")) from None
        if not _scopes_of(claims).issuperset(self.scopes):
            raise InsufficientScopeError(self.scopes, challenge(where, self.scopes, "insufficient_scope"))
        return principal

    async def _verified(self, token: str) -> dict[str, Any]:
        """Return what a token says, if it holds."""
        import jwt  # noqa: PLC0415 -- the library is an extra

        if len(token) > LONGEST:
            raise _RefusedError("too long")
        try:
            algorithm, key_id = self._checked_header(jwt.get_unverified_header(token))
            key = await self._keys.find(key_id, algorithm)
            if key is None:
                raise _RefusedError("unknown key")
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self.issuer,
                leeway=self._leeway,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as problem:
            raise _RefusedError(type(problem).__name__) from None  # its text may quote from the token

    def _checked_header(self, header: dict[str, Any]) -> tuple[str, str]:
        """Return the algorithm and the id of the key that a token names. The algorithm is never taken on trust."""
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if not isinstance(algorithm, str) or algorithm not in self._allowed or not isinstance(key_id, str):
            raise _RefusedError("algorithm")
        if "crit" in header or str(header.get("typ", "jwt")).lower() not in _KINDS:
            raise _RefusedError("kind")
        return algorithm, key_id

    def _principal(self, claims: dict[str, Any]) -> Principal:
        if "cnf" in claims:
            raise _RefusedError("bound to a key that is not shown")
        user = _text(_found(claims, self._user))
        tenant = Principal().tenant if self._tenant is None else _text(_found(claims, self._tenant))
        roles = self._named(claims) if self._roles in SCOPES else _words(_found(claims, self._roles))
        try:
            return Principal(tenant, user, roles)
        except InvalidArrivalError:
            raise _RefusedError("claims") from None

    def _named(self, claims: dict[str, Any]) -> frozenset[str]:
        """Return the roles that scopes name."""
        named = [each.removeprefix(self._prefix) for each in _scopes_of(claims) if each.startswith(self._prefix)]
        return frozenset(filter(None, named))


def _need_the_library() -> None:
    if find_spec("jwt") is None or find_spec("cryptography") is None:  # without the second, it knows secrets only
        raise MissingExtraError("checking access tokens", "standfast[oauth]")


def _checked_scopes(given: Iterable[str]) -> tuple[str, ...]:
    scopes = (given,) if isinstance(given, str) else tuple(given)
    for scope in scopes:
        if not scope or not scope.isascii() or not scope.isprintable() or {'"', "\\", " "} & set(scope):
            raise InvalidFlowError(_WHERE, "a scope is one word of ASCII, without quotes")
    return scopes


def _found(claims: dict[str, Any], claim: Claim) -> object:
    found: object = claims
    for name in (claim,) if isinstance(claim, str) else claim:
        found = cast("dict[str, object]", found).get(name) if isinstance(found, dict) else None
    return found


def _text(found: object) -> str:
    if not isinstance(found, str) or not found:
        raise _RefusedError("claims")
    return found


def _words(found: object) -> frozenset[str]:
    """Return a list of texts, or a text of words, as a set; what is neither says nothing."""
    if isinstance(found, str):
        return frozenset(found.split())
    return (
        frozenset(each for each in cast("list[object]", found) if isinstance(each, str))
        if isinstance(found, list)
        else frozenset()
    )


def _scopes_of(claims: dict[str, Any]) -> frozenset[str]:
    """Return the scopes: ``scope`` as RFC 9068 has it, or ``scp`` as some servers do."""
    return _words(claims.get(SCOPE, claims.get("scp")))
