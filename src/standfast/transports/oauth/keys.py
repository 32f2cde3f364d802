"""The public keys of an issuer: which there are, and how they are fetched without anybody being able to force it."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final
from urllib.parse import urlsplit

import msgspec

from standfast.clock import monotonic
from standfast.errors import InvalidFlowError, SigningKeysUnavailableError
from standfast.logs import as_logfmt
from standfast.offload import Lane
from standfast.transports.loopback import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from jwt import PyJWK

FRESH: Final = 600.0
"""Seconds after which keys are looked at again; meanwhile those that are known count."""

COOLDOWN: Final = 60.0
"""Seconds between two looks, whoever asks for a key that is not known, and however often."""

SOON: Final = 5.0
"""Seconds between two looks while no key is known at all."""

KEPT: Final = 86_400.0
"""Seconds for which keys count while the issuer does not answer. A key that was withdrawn has to go some day."""

TIME: Final = 5.0
"""Seconds within which a document has to arrive."""

LARGEST: Final = 262_144
"""Bytes of a document of keys."""

SMALLEST_RSA: Final = 2_048
"""Bits of an RSA key. What is smaller is passed over."""

SUITED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""Which algorithms a kind of key is for. Secrets are none: whoever can check with one could sign with it too."""

SAFE: Final = frozenset(name for names in SUITED.values() for name in names)

_lane: Final = Lane("signing-keys")
_log: Final = logging.getLogger("standfast.transports")


class Keys(Protocol):
    """Where keys are looked up."""

    async def find(self, key_id: str, algorithm: str) -> PyJWK | None:
        """Return a key for an algorithm. Without an id there is one only if there is no other."""
        ...


@final
class KeySet:
    """A document of keys, as RFC 7517 describes it. What cannot check signatures here is passed over.

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
"""What a public key does not have. Checking needs none of it."""


@final
class FetchedKeys:
    """Keys at an address, read when they are needed.

    They are looked at again after a while, and when a token names a key that is not known; but no more often than
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
            SigningKeysUnavailableError: The issuer does not answer, and nothing is known from before.
        """
        if self._now() - self._read_at >= FRESH:
            self._look()  # whoever asks now need not wait for it, if the key is known
        known = self._current()
        found = None if known is None else known.get(key_id, algorithm)
        if found is None and (known is None or key_id):
            await self._looked()
            known = self._current()
            if known is None:
                raise SigningKeysUnavailableError
            found = known.get(key_id, algorithm)
        return found

    def _current(self) -> KeySet | None:
        return self._keys if self._now() - self._read_at < KEPT else None

    async def _looked(self) -> None:
        """Wait for the look that is under way, or is to be had."""
        reading = self._look()
        if reading is not None:
            await asyncio.shield(reading)

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
        InvalidFlowError: There is no key in the document that can be used, or the address is not safe.
    """
    if isinstance(given, str):
        return FetchedKeys(checked_address(given, where, "keys"), algorithms)
    keys = KeySet(dict(given), algorithms)
    if not keys:
        raise InvalidFlowError(where, f"keys has no public key for {', '.join(sorted(algorithms))}")
    return keys


def checked_address(url: str, where: str, what: str) -> str:
    """Return an address that nobody in between can change what is said at.

    Raises:
        InvalidFlowError: It is not https, and not on this machine; or has something in it that does not belong there.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise InvalidFlowError(where, f"{what} must be an address with https, or on this machine")
    if parts.fragment or parts.username is not None or not url.isprintable() or {'"', "\\", " "} & set(url):
        raise InvalidFlowError(where, f"{what} has a fragment, credentials or odd characters in it")
    return url


@final
class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address stands in the declaration. Nobody else says where it is to be asked instead."""

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
    with opener.open(request, timeout=TIME) as answer:
        while piece := answer.read1(65_536):
            read += piece
            if len(read) > LARGEST or monotonic() > until:
                raise ValueError(url)
    return msgspec.json.decode(bytes(read))
