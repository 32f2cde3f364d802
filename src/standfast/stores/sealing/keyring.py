"""The keys with which values are sealed, by their names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from standfast.errors import BrokenSealError, InvalidKeyringError, MissingExtraError, UnknownSealingKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
MARK: Final = b"sealed1:"
LONGEST_NAME: Final = 32
OVERHEAD: Final = len(MARK) + LONGEST_NAME + 1 + NONCE_BYTES + TAG_BYTES
"""By how many bytes a sealed value is longer, at the most."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)


class _Aead(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


@final
class Keyring:
    """Keys for sealing values: AES-256-GCM, each value with a nonce of its own, bound to the place where it lies.

    A value is sealed together with the key of its record, which names the namespace, the tenant and what it belongs
    to. So a value that somebody moves to another tenant, another run or another step is refused.

        keyring = Keyring({"2026-01": key})

    Args:
        keys: Keys of 32 bytes by their names; a name is stored with each value. Take them from a secret store.
        current: With which of them values are sealed; by default the last one. The others only open what is there.
        accept_plain: Whether values that are not sealed are read as they are: only while a store is being changed
            over, since it lets whoever can write to the store put values there.
    """

    __slots__ = ("_accepts_plain", "_ciphers", "_current")

    def __init__(self, keys: Mapping[str, bytes], *, current: str | None = None, accept_plain: bool = False) -> None:
        for name, key in keys.items():
            if not _NAME.fullmatch(name):
                raise InvalidKeyringError(f"the name {name!r:.50}", "it must be 1 to 32 letters, digits or . _ -")
            if len(key) != KEY_BYTES:
                raise InvalidKeyringError(f"the key {name!r}", f"it has {len(key)} bytes; it must have {KEY_BYTES}")
        chosen = next(reversed(list(keys)), "") if current is None else current
        if chosen not in keys:
            raise InvalidKeyringError("current", f"{chosen!r} is none of its keys; give at least one key")
        self._ciphers: Final = {name: _cipher(bytes(key)) for name, key in keys.items()}
        self._current: Final = chosen
        self._accepts_plain: Final = accept_plain

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(self._ciphers)}; seals with {self._current}>"

    @staticmethod
    def new_key() -> bytes:
        """Make a key. Keep it where the store's other secrets are: without it nothing can be read any more."""
        return os.urandom(KEY_BYTES)

    def seal(self, value: bytes, place: bytes) -> bytes:
        """Return a value sealed for one place."""
        nonce = os.urandom(NONCE_BYTES)
        name = self._current
        return b"%b%b:%b%b" % (MARK, name.encode(), nonce, self._ciphers[name].encrypt(nonce, value, place))

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Return the value that was sealed for a place.

        Raises:
            UnknownSealingKeyError: It was sealed with a key that is not in this keyring.
            BrokenSealError: It was changed, was sealed for another place, or is not sealed at all.
        """
        if not sealed.startswith(MARK):
            if self._accepts_plain:
                return sealed
            raise BrokenSealError("it is not sealed; accept_plain=True reads such values while a store is changed over")
        name, _, rest = sealed[len(MARK) :].partition(b":")
        cipher = self._ciphers.get(name.decode("ascii", "replace"))
        if cipher is None:
            raise UnknownSealingKeyError(name[:LONGEST_NAME].decode("ascii", "replace"), tuple(self._ciphers))
        try:
            return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], place)
        except Exception as problem:
            raise BrokenSealError("it was changed, or it belongs to another place") from problem


def _cipher(key: bytes) -> _Aead:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- an extra, needed only here
    except ImportError:
        raise MissingExtraError("encryption", "standfast[encryption]") from None
    return cast("_Aead", cast("Any", AESGCM)(key))
