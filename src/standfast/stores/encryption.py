"""Encryption at the store seam: a reader of the store learns keys, times and sizes, and no values."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, final

from msgspec import structs

from standfast.errors import (
    BrokenSealError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownSealingKeyError,
    UnsuitableStoreError,
)
from standfast.stores.group_commit import GroupedStore, verdict_of
from standfast.stores.protocol import MAX_VERSION, Conflict, Decision, Put, SharesTransactions, Snapshot, Wake
from standfast.stores.user_transactions import user_transactions_of
from standfast.stores.validation import check_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.protocol import (
        Alternative,
        Capabilities,
        Change,
        Choice,
        Commit,
        Decided,
        Record,
        Store,
        Verdict,
        Watch,
        Worked,
    )
    from standfast.stores.user_transactions import Talk, UserTransactions

__all__ = ["EncryptedStore", "Keyring"]


# --- the keys with which values are sealed, by their names ---------------------------------------------------------

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
MARK: Final = b"sealed2:"
FIRST: Final = b"sealed1:"
"""What values begin with that were sealed by the first version: with the key itself, and for their place alone."""

LONGEST_NAME: Final = 32
MOST_VALUES: Final = 2**64
"""How many values a key may seal. Each is sealed with a key of its own, derived from it and 128 random bits: after that
number, the chance that two of them have the same key and nonce is below 2**-96."""

_BOUND: Final = struct.Struct(">Qq")
_NEVER: Final = -1
OVERHEAD: Final = len(MARK) + LONGEST_NAME + 1 + SALT_BYTES + NONCE_BYTES + 8 + TAG_BYTES
"""By how many bytes a sealed value is longer, at the most."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)


class _Aead(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


@final
class Keyring:
    """Keys for sealing values: AES-256-GCM, each value with a key and a nonce of its own.

    A value is sealed for the key of its record, which names the namespace, the tenant and what it belongs to; for its
    expiry; and for versions after the one that it was written over. So a value is refused that was moved to another
    tenant, run or step, was given another expiry, or was put where an older one had been.

        keyring = Keyring({"2026-01": key})

    Args:
        keys: Keys of 32 bytes by their names; a name is stored with each value. Take them from a secret store.
        current: With which of them values are sealed; by default the last one. The others only open what is there.
        accept_plain: Whether values that are not sealed are read as they are: only while a store is being changed
            over, since it lets any writer of the store put values there.
    """

    __slots__ = ("_accepts_plain", "_aead", "_current", "_keys")

    def __init__(self, keys: Mapping[str, bytes], *, current: str | None = None, accept_plain: bool = False) -> None:
        for name, key in keys.items():
            if not _NAME.fullmatch(name):
                raise InvalidArgumentError(
                    f"the name {name!r:.50} of a keyring", "it must be 1 to 32 letters, digits or . _ -"
                )
            if len(key) != KEY_BYTES:
                raise InvalidArgumentError(
                    f"the key {name!r} of a keyring", f"it has {len(key)} bytes; it must have {KEY_BYTES}"
                )
        chosen = next(reversed(list(keys)), "") if current is None else current
        if chosen not in keys:
            raise InvalidArgumentError("current of a keyring", f"{chosen!r} is none of its keys; give at least one key")
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 -- an extra, needed only here
        except ImportError:
            raise MissingExtraError("encrypting a store", "standfast[encryption]") from None
        self._aead: Final = cast("Callable[[bytes], _Aead]", cast("Any", AESGCM))
        self._keys: Final = {name: bytes(key) for name, key in keys.items()}
        self._current: Final = chosen
        self._accepts_plain: Final = accept_plain

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(self._keys)}; seals with {self._current}>"

    @staticmethod
    def new_key() -> bytes:
        """Make a key. Keep it where the store's other secrets are: without it nothing can be read any more."""
        return os.urandom(KEY_BYTES)

    def seal(self, value: bytes, place: bytes, *, after: int = 0, expires_at: int | None = None) -> bytes:
        """Return a value sealed for one place.

        Args:
            value: What to seal.
            place: The key of its record.
            after: The version that it is written over: it is refused at this one and at any before it.
            expires_at: When its record expires; None: never. It is refused with any other expiry.
        """
        random = os.urandom(SALT_BYTES + NONCE_BYTES)
        salt, nonce = random[:SALT_BYTES], random[SALT_BYTES:]
        name = self._current.encode()
        bound = _BOUND.pack(after, _NEVER if expires_at is None else expires_at)
        cipher = self._aead(_derived(self._keys[self._current], salt))
        sealed = cipher.encrypt(nonce, value, b"%b%b:%b" % (bound, name, place))
        return b"%b%b:%b%b%b" % (MARK, name, random, bound[:8], sealed)

    def open(self, sealed: bytes, place: bytes, *, version: int | None = None, expires_at: int | None = None) -> bytes:
        """Return the value that was sealed for a place.

        Args:
            sealed: What lies there.
            place: The key of its record.
            version: The version of its record; None: not known.
            expires_at: When its record expires; None: never.

        Raises:
            UnknownSealingKeyError: It was sealed with a key that is not in this keyring.
            BrokenSealError: It was changed, was sealed for another place, expiry or version, or is not sealed at all.
        """
        mark = sealed[: len(MARK)]
        if mark not in (MARK, FIRST):
            if mark.startswith(b"sealed") and mark.endswith(b":"):
                raise BrokenSealError("it was sealed by a newer version of Standfast; install that one")
            if self._accepts_plain:
                return sealed
            raise BrokenSealError("it is not sealed; accept_plain=True reads such values while a store is changed over")
        name, _, rest = sealed[len(MARK) :].partition(b":")
        key = self._keys.get(name.decode("ascii", "replace"))
        if key is None:
            raise UnknownSealingKeyError(name[:LONGEST_NAME].decode("ascii", "replace"), tuple(self._keys))
        try:
            if mark == FIRST:
                return self._aead(key).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], place)
            salt, rest = rest[:SALT_BYTES], rest[SALT_BYTES:]
            nonce, after, rest = rest[:NONCE_BYTES], rest[NONCE_BYTES:][:8], rest[NONCE_BYTES + 8 :]
            expiry = _BOUND.pack(0, _NEVER if expires_at is None else expires_at)[8:]
            value = self._aead(_derived(key, salt)).decrypt(nonce, rest, b"%b%b%b:%b" % (after, expiry, name, place))
        except Exception as error:
            raise BrokenSealError("it was changed, or it belongs to another place or expiry") from error
        if version is not None and version <= int.from_bytes(after):
            raise BrokenSealError("it is newer than its record: it was put where an older value was")
        return value


def _derived(key: bytes, salt: bytes) -> bytes:
    """Return the key of one value (HKDF-Expand with SHA-256, one block)."""
    return hmac.digest(key, b"standfast sealed2" + salt + b"\x01", "sha256")


# --- the store that encrypts ---------------------------------------------------------------------------------------

T = TypeVar("T")

_REAL: Final = MAX_VERSION // 2
"""The highest version that a store has drawn. Above are those that stand for one which is still to be drawn."""


def _unshown(wakes: Sequence[Wake]) -> tuple[Wake, ...]:
    """Return wakes that show no records: a notification would bring them sealed."""
    return tuple([structs.replace(each, shows=()) if type(each) is Wake and each.shows else each for each in wakes])


@final
class EncryptedStore:
    """A :class:`~standfast.stores.Store` over another one. Keys, versions and expiries are as they are; values are not.

    Args:
        store: Where everything is kept. It is closed with this one.
        keyring: The keys.
    """

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store: Final = store
        self._keyring: Final = keyring
        limits = store.capabilities
        self._limits: Final = structs.replace(
            limits,
            max_value_bytes=limits.max_value_bytes - OVERHEAD,
            max_commit_bytes=limits.max_commit_bytes - limits.max_changes * OVERHEAD,
            alternatives=False,
        )

    def __repr__(self) -> str:
        return f"<EncryptedStore {self._store!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """What the store underneath can do; values are a little shorter, and no server moves them: they are sealed."""
        return self._limits

    # --- sealing ---------------------------------------------------------------------------------------------

    def sealed(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        """Return changes with their values sealed, once they are such as the store would take."""
        check_commit(changes, (), self._limits)
        return tuple(self._sealed(change) if type(change) is Put else change for change in changes)

    def _sealed(self, put: Put) -> Put:
        after = put.expected if put.expected <= _REAL else 0  # others of its batch are written first, at any version
        value = self._keyring.seal(put.value, put.key, after=after, expires_at=put.expires_at)
        return structs.replace(put, value=value)

    def _opened(self, record: Record) -> Record:
        value = self._keyring.open(record.value, record.key, version=record.version, expires_at=record.expires_at)
        return structs.replace(record, value=value)

    def opened(self, seen: Snapshot) -> Snapshot:
        """Return a snapshot with its values opened."""
        return Snapshot(seen.at, {key: self._opened(record) for key, record in seen.records.items()}, seen.more)

    def answered(self, answer: Any) -> Any:  # noqa: ANN401 -- any verdict, or an exception
        """Return a verdict with the values in it opened."""
        if not isinstance(answer, Conflict):
            return answer
        current = {key: None if record is None else self._opened(record) for key, record in answer.current.items()}
        return Conflict(answer.at, current)

    async def _told(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 -- any verdict
        try:
            return self.answered(await work)
        except asyncio.CancelledError as cancelled:
            cancelled.verdict = self.answered(verdict_of(cancelled))  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] -- read by verdict_of
            raise

    # --- the store -------------------------------------------------------------------------------------------

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records in one snapshot."""
        return self.opened(await self._store.read(*keys))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range."""
        return self.opened(await self._store.scan(start, end, limit=limit, reverse=reverse))

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Do all of ``changes`` or none."""
        work = self._store.commit(*self.sealed(changes), after=after, before=before, wake=_unshown(wake))
        return cast("Commit | Conflict", await self._told(work))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide and commit."""

        def sealed(seen: Snapshot) -> Decision[T]:
            decision = decide(self.opened(seen))
            if not isinstance(decision, Decision) or not decision.changes:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                return decision
            return structs.replace(decision, changes=self.sealed(decision.changes), wake=_unshown(decision.wake))

        return cast("Decided[T]", await self._told(self._store.update(keys, sealed)))

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Refuse: a value is sealed for its key, and so cannot be moved to another one."""
        del alternatives
        raise UnsuitableStoreError(self._limits.backend, "a sealed value cannot be moved; use commit")

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        extra_changes: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` and the caller's own SQL in one transaction. What the SQL writes is not sealed."""
        store = self._store
        if not isinstance(store, SharesTransactions):
            raise UnsuitableStoreError(self._limits.backend, "it cannot share a transaction with your SQL")

        def sealed(answer: T) -> Sequence[Change]:
            more = () if extra_changes is None else tuple(extra_changes(answer))
            return self.sealed(more) if more else ()

        done = store.commit_with(
            work,
            *self.sealed(changes),
            after=after,
            before=before,
            wake=_unshown(wake),
            timeout=timeout,
            extra_changes=sealed,
        )
        return cast("Worked[T] | Conflict", await self._told(done))

    async def user_transactions(self) -> UserTransactions:
        """Return what this store can do over connections of the user's; what it writes there is sealed as well."""
        return _EncryptedUserTransactions(await user_transactions_of(self._store, self._limits.backend), self)

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Subscribe to keys."""
        return self._store.watch(*prefixes)

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out for good what became of an attempt."""
        return cast("Verdict | None", self.answered(await self._store.settle(attempt)))

    async def another(self) -> EncryptedStore:
        """Open another handle on the same store, with the same keys."""
        return EncryptedStore(await self._store.another(), self._keyring)

    @property
    def write_problem(self) -> Exception | None:
        """What the last transaction of the store underneath failed with, as far as it tells."""
        return self._store.write_problem if isinstance(self._store, GroupedStore) else None

    def liveness_token(self) -> str:
        """Return the text by which other processes see that this one has died."""
        return self._store.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has died."""
        return self._store.is_dead(token)

    async def aclose(self) -> None:
        """Close the store underneath."""
        await self._store.aclose()


@final
class _EncryptedUserTransactions:
    """What a sealed store does over connections of the user's."""

    def __init__(self, joining: UserTransactions, store: EncryptedStore) -> None:
        self._joining, self._store = joining, store

    def write(
        self, changes: Sequence[Change], *, before: Instant | None = None, idle: float | None = None
    ) -> Talk[Commit | Conflict]:
        answer = yield from self._joining.write(self._store.sealed(changes), before=before, idle=idle)
        return cast("Commit | Conflict", self._store.answered(answer))

    def read(self, keys: Sequence[RecordKey]) -> Talk[Snapshot]:
        seen = yield from self._joining.read(keys)
        return self._store.opened(seen)
