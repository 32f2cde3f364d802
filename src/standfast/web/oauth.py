"""Access tokens of an authorization server: its public keys, what clients are told, and checking a token."""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from http.client import HTTPException
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast, final
from urllib.parse import urlsplit

import msgspec

from standfast.clock import monotonic
from standfast.durations import seconds
from standfast.errors import (
    AuthenticationError,
    DeclarationError,
    ForbiddenError,
    HttpError,
    InvalidInputError,
    MissingExtraError,
)
from standfast.flows.request import Principal
from standfast.log_budget import LogBudget
from standfast.log_hook import as_logfmt
from standfast.threads import Lane
from standfast.web.asgi import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from jwt import PyJWK
    from starlette.requests import HTTPConnection

    from standfast.durations import Duration


# --- the public keys of an issuer, and how they are fetched: no caller can force that ------------------------------

FRESH: Final = 600.0
"""Seconds after which keys are read again; meanwhile the known ones count."""

COOLDOWN: Final = 60.0
"""Seconds between two reads, however often an unknown key is asked for."""

SOON: Final = 5.0
"""Seconds between two reads while no key is known."""

KEPT: Final = 86_400.0
"""Seconds for which keys count while the issuer does not answer. A revoked key has to go some day."""

TIME: Final = 5.0
"""Seconds within which a document has to arrive."""

LARGEST: Final = 262_144
"""Bytes of a document of keys."""

SMALLEST_RSA: Final = 2_048
"""The fewest bits of an RSA key. Smaller ones are ignored."""

SUITED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Which algorithms a kind of key is for. Secrets are none: a program that checks with one could sign with it too."""

SAFE: Final = frozenset(name for names in SUITED.values() for name in names)

_lane: Final = Lane("signing-keys")
_log: Final = logging.getLogger("standfast.web")


class Keys(Protocol):
    """Where keys are looked up."""

    async def find(self, key_id: str, algorithm: str) -> PyJWK | None:
        """Return a key for an algorithm. Without an id there is one only if there is no other."""
        ...


@final
class KeySet:
    """A document of keys, as RFC 7517 describes it. Keys that cannot check signatures here are ignored.

    Args:
        document: The document.
        algorithms: Which algorithms are allowed.
    """

    def __init__(self, document: object, algorithms: Collection[str]) -> None:
        given = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
        self._known: Final[dict[tuple[str, str], PyJWK]] = {}
        for each in cast("list[object]", given) if isinstance(given, list) else ():
            if isinstance(each, dict):
                self._add(cast("dict[str, Any]", each), algorithms)

    def __len__(self) -> int:
        return len(self._known)

    def _add(self, jwk: dict[str, Any], algorithms: Collection[str]) -> None:
        kind, curve, key_id = jwk.get("kty"), jwk.get("crv", ""), jwk.get("kid", "")
        suited = SUITED.get((kind, curve), ()) if isinstance(kind, str) and isinstance(curve, str) else ()
        if jwk.get("use", "sig") != "sig" or not isinstance(key_id, str):
            return
        for algorithm in suited:
            if algorithm in algorithms and jwk.get("alg", algorithm) == algorithm:
                key = _made(jwk, algorithm)
                if key is not None:
                    self._known.setdefault((key_id, algorithm), key)

    def get(self, key_id: str, algorithm: str) -> PyJWK | None:
        """Return a key for an algorithm. Without an id there is one only if there is no other."""
        if key_id:
            return self._known.get((key_id, algorithm))
        suited = [key for (_, name), key in self._known.items() if name == algorithm]
        return suited[0] if len(suited) == 1 else None

    async def find(self, key_id: str, algorithm: str) -> PyJWK | None:
        """Return a key for an algorithm."""
        return self.get(key_id, algorithm)


def _made(jwk: dict[str, Any], algorithm: str) -> PyJWK | None:
    import jwt  # noqa: PLC0415 -- the library is an extra

    try:
        key = jwt.PyJWK({name: jwk[name] for name in jwk if name not in _PRIVATE}, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return key if jwk["kty"] != "RSA" or key.key.key_size >= SMALLEST_RSA else None


_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""The fields of private keys. Checking needs none of them."""


@final
class FetchedKeys:
    """Keys at an address, read when they are needed.

    They are read again after a while, and when a token names an unknown key; but no more often than
    :data:`COOLDOWN` says, so that made-up tokens cannot make this server ask another one again and again.

    Args:
        url: Where they are.
        algorithms: Which algorithms are allowed.
        fetch: Reads the document, in a thread.
        now: Seconds by some clock.
    """

    def __init__(
        self,
        url: str,
        algorithms: Collection[str],
        fetch: Callable[[str], object] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._url, self._algorithms, self._now = url, algorithms, now
        self._fetch: Final = fetch or fetched
        self._keys: KeySet | None = None
        self._read_at = self._tried_at = -KEPT
        self._reading: asyncio.Future[KeySet | None] | None = None

    async def find(self, key_id: str, algorithm: str) -> PyJWK | None:
        """Return a key for an algorithm.

        Raises:
            HttpError: The issuer does not answer, and nothing is known from before.
        """
        if self._now() - self._read_at >= FRESH:
            self._look()  # a caller that asks now need not wait for it, if the key is known
        known = self._current()
        found = None if known is None else known.get(key_id, algorithm)
        if found is None and (known is None or key_id):
            if (reading := self._look()) is not None:  # the one that is under way, or a new one
                await asyncio.shield(reading)
            known = self._current()
            if known is None:
                raise HttpError("signing-keys-unavailable", "the keys of the issuer cannot be read now")
            found = known.get(key_id, algorithm)
        return found

    def _current(self) -> KeySet | None:
        return self._keys if self._now() - self._read_at < KEPT else None

    def _look(self) -> asyncio.Future[KeySet | None] | None:
        reading, loop = self._reading, asyncio.get_running_loop()
        if reading is not None and not reading.done() and reading.get_loop() is loop:
            return reading
        if self._now() - self._tried_at < (SOON if self._current() is None else COOLDOWN):
            return None
        self._tried_at = self._now()
        self._reading = _lane.start(self._read)
        self._reading.add_done_callback(self._take)
        return self._reading

    def _read(self) -> KeySet | None:
        try:
            keys = KeySet(self._fetch(self._url), self._algorithms)
        except (OSError, ValueError, HTTPException, RecursionError) as problem:
            _tell("signing-keys-unavailable", problem=type(problem).__name__)
            return None
        if not keys:
            _tell("signing-keys-unavailable", problem="there is none that can be used")
            return None
        return keys

    def _take(self, reading: asyncio.Future[KeySet | None]) -> None:
        if not reading.cancelled() and reading.exception() is None and (keys := reading.result()) is not None:
            self._keys, self._read_at = keys, self._now()


def _tell(event: str, **facts: str) -> None:
    _log.warning("%s", as_logfmt({"event": event, **facts}))


def keys_from(given: Mapping[str, Any] | str, algorithms: Collection[str], where: str) -> Keys:
    """Return where keys are looked up: in a document, or at an address.

    Raises:
        DeclarationError: There is no key in the document that can be used, or the address is not safe.
    """
    if isinstance(given, str):
        return FetchedKeys(checked_address(given, where, "keys"), algorithms)
    keys = KeySet(dict(given), algorithms)
    if not keys:
        raise DeclarationError(where, f"keys has no public key for {', '.join(sorted(algorithms))}")
    return keys


def checked_address(url: str, where: str, what: str) -> str:
    """Return an address whose answers nothing on the way can change.

    Raises:
        DeclarationError: It is not https, and not on this machine; or has something in it that does not belong there.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise DeclarationError(where, f"{what} must be an address with https, or on this machine")
    if parts.fragment or parts.username is not None or not url.isprintable() or {'"', "\\", " "} & set(url):
        raise DeclarationError(where, f"{what} has a fragment, credentials or odd characters in it")
    return url


@final
class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: only the declaration says where keys are read."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none."""


def fetched(url: str) -> object:
    """Read a document of JSON, in time and of a sensible size. It blocks.

    Raises:
        OSError: It could not be read.
        HTTPException: What answers does not speak HTTP, or breaks off.
        ValueError: It is no JSON, too large, or elsewhere.
        RecursionError: It is nested too deeply.
    """
    until = monotonic() + TIME
    opener = urllib.request.build_opener(_NoRedirects)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 -- the scheme was checked
    read = bytearray()
    try:
        with opener.open(request, timeout=TIME) as answer:
            while piece := answer.read1(65_536):
                read += piece
                if len(read) > LARGEST or monotonic() > until:
                    raise ValueError(url)
    except urllib.error.HTTPError as refused:
        refused.close()  # it holds the connection
        raise
    return msgspec.json.decode(bytes(read))


# --- what clients are told about where to get a token: RFC 9728, and the challenges of RFC 6750 --------------------

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def document(resource: str, issuer: str, scopes: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a protected resource."""
    found: dict[str, Any] = {
        "resource": resource,
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
    }
    return found | ({"scopes_supported": list(scopes)} if scopes else {})


def paths(resource: str) -> tuple[str, ...]:
    """Return where the metadata is served: for the path of the resource, and for each shorter end of it.

    Below a mount the application sees only the end of a path.
    """
    parts = urlsplit(resource).path.rstrip("/").split("/")[1:]
    ends = ["".join(f"/{part}" for part in parts[begin:]) for begin in range(len(parts) + 1)]
    return tuple(f"{WELL_KNOWN}{end}" for end in ends)


def address(resource: str, root: str) -> str:
    """Return the address of the metadata, as a client reaches it: below where the application is mounted."""
    whole = urlsplit(resource)
    path = whole.path.rstrip("/")
    if root and not (f"{path}/".startswith(f"{root}/")):
        root = ""
    return f"{whole.scheme}://{whole.netloc}{root}{WELL_KNOWN}{path.removeprefix(root)}"


def challenge(where: str, scopes: Sequence[str], error: str = "") -> str:
    """Return what ``WWW-Authenticate`` says."""
    said = {"error": error, "scope": " ".join(scopes), "resource_metadata": where}
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in said.items() if value)


# --- access tokens that an authorization server has issued for this application ------------------------------------

Claim: TypeAlias = str | tuple[str, ...]
"""The name of a claim; several names lead into one that has others in it."""

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
LONGEST: Final = 16_384
"""Characters of a token."""

SCOPE: Final = "scope"
SCOPES: Final = (SCOPE, "scp")
PREFIX: Final = "standfast:"
"""The prefix of scopes that are roles."""
_WHERE: Final = "OAuthTokens"
_KINDS: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})


_NEEDED: Final = "an access token is needed that holds here"


class _TokenRefusedError(Exception):
    """A token does not hold. It never leaves this module."""


@final
class OAuthTokens:
    """Callers send ``Authorization: Bearer`` and a signed token (JWT) of an authorization server that is trusted.

        authenticate=sf.web.OAuthTokens(
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
        audience: The address of this application: their ``aud``. A token for another application is refused.
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
        DeclarationError: An address is not safe, an algorithm is not allowed, or there is no key.
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
        if find_spec("jwt") is None or find_spec("cryptography") is None:  # without the second, it knows secrets only
            raise MissingExtraError("checking access tokens", "standfast[oauth]")
        allowed = frozenset(algorithms)
        if not allowed or not allowed <= SAFE:
            raise DeclarationError(_WHERE, f"algorithms must be some of {', '.join(sorted(SAFE))}")
        self.issuer: Final = checked_address(issuer, _WHERE, "issuer")
        self.audience: Final = checked_address(audience, _WHERE, "audience")
        self.scopes: Final = _checked_scopes(scopes)
        self._allowed, self._keys = allowed, keys_from(keys, allowed, _WHERE)
        self._tenant, self._user, self._roles = tenant, user, roles
        if not scope_prefix:
            raise DeclarationError(_WHERE, "scope_prefix is empty, and any scope would be a role; name a claim: roles=")
        [self._prefix] = _checked_scopes(scope_prefix)
        self._leeway: Final = seconds(leeway, what="leeway")
        self._refusals: Final = LogBudget(_log)
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
            AuthenticationError: There is none, or it does not hold.
            ForbiddenError: It holds, and lacks a scope.
            HttpError: It cannot be found out now whether it holds.
        """
        where = address(self.audience, connection.scope.get("root_path", ""))
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise AuthenticationError(_NEEDED, challenge(where, self.scopes))
        try:
            claims = await self._verified(token.strip())
            principal = self._principal(claims)
        except _TokenRefusedError as problem:
            where_from = connection.client.host if connection.client else ""
            self._refusals.warning("token-refused", reason=str(problem), address=where_from, status=401)
            raise AuthenticationError(_NEEDED, challenge(where, self.scopes, "invalid_token")) from None
        if not _scopes_of(claims).issuperset(self.scopes):
            needed = challenge(where, self.scopes, "insufficient_scope")
            raise ForbiddenError("this application", scopes=self.scopes, challenge=needed)
        return principal

    async def _verified(self, token: str) -> dict[str, Any]:
        """Return what a token says, if it holds."""
        import jwt  # noqa: PLC0415 -- the library is an extra

        if len(token) > LONGEST:
            raise _TokenRefusedError("too long")
        try:
            algorithm, key_id = self._checked_header(jwt.get_unverified_header(token))
            key = await self._keys.find(key_id, algorithm)
            if key is None:
                raise _TokenRefusedError("unknown key")
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
            raise _TokenRefusedError(type(problem).__name__) from None  # its text may quote from the token

    def _checked_header(self, header: dict[str, Any]) -> tuple[str, str]:
        """Return the algorithm and the id of the key that a token names. The algorithm is never taken on trust."""
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if not isinstance(algorithm, str) or algorithm not in self._allowed or not isinstance(key_id, str):
            raise _TokenRefusedError("algorithm")
        if "crit" in header or str(header.get("typ", "jwt")).lower() not in _KINDS:
            raise _TokenRefusedError("kind")
        return algorithm, key_id

    def _principal(self, claims: dict[str, Any]) -> Principal:
        if "cnf" in claims:
            raise _TokenRefusedError("bound to a key that is not shown")
        user = _text(_found(claims, self._user))
        tenant = Principal().tenant if self._tenant is None else _text(_found(claims, self._tenant))
        if self._roles in SCOPES:
            named = [each.removeprefix(self._prefix) for each in _scopes_of(claims) if each.startswith(self._prefix)]
            roles = frozenset(filter(None, named))
        else:
            roles = _words(_found(claims, self._roles))
        try:
            return Principal(tenant, user, roles)
        except InvalidInputError:
            raise _TokenRefusedError("claims") from None


def _checked_scopes(given: Iterable[str]) -> tuple[str, ...]:
    scopes = (given,) if isinstance(given, str) else tuple(given)
    for scope in scopes:
        if not scope or not scope.isascii() or not scope.isprintable() or {'"', "\\", " "} & set(scope):
            raise DeclarationError(_WHERE, "a scope is one word of ASCII, without quotes")
    return scopes


def _found(claims: dict[str, Any], claim: Claim) -> object:
    found: object = claims
    for name in (claim,) if isinstance(claim, str) else claim:
        found = cast("dict[str, object]", found).get(name) if isinstance(found, dict) else None
    return found


def _text(found: object) -> str:
    if not isinstance(found, str) or not found:
        raise _TokenRefusedError("claims")
    return found


def _words(found: object) -> frozenset[str]:
    """Return a list of texts, or a text of words, as a set; anything else is empty."""
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
