"""Idempotency keys: a request that is sent twice is done once, and answered twice.

A key belongs to one tenant, user, flow and action, so no user gets another's answer by guessing a key. It is written in
the commit that takes the request on, and stands for that request for as long as its record is kept: its end, and the
action's window after it. What it says about a request that was lost follows from the request itself: if its server
died, the next one with the same key is run; or told that it was interrupted, if the action says so.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.errors import IdempotencyInFlightError, IdempotencyMismatchError, RequestNotFoundError
from standfast.flows.records import AGAIN, KEPT, RequestKeys, idempotency_of
from standfast.flows.view import RequestView, look, settle
from standfast.keys import RecordKey
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.flows.request import Call
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

LONGEST_RUN: Final = 30 * 86_400.0
"""Seconds for which a key is kept while its request has not ended."""


class KeyRecord(Struct, frozen=True):
    """What an idempotency key stands for."""

    request: str
    fingerprint: str


KEYS: Final[Codec[KeyRecord]] = Codec(KeyRecord, what="an idempotency key")


class RacedError(Exception):
    """Another request with the same key came first. Only raised and caught in here and by dispatch."""


class IdempotencyClaim(Struct, frozen=True):
    """A key that is free to be used by one request.

    Attributes:
        key: Where it lies.
        version: Its version: 0, or that of an earlier request which left nothing behind.
        fingerprint: Of what the request brings.
        window: For how many seconds it is kept after the end.
    """

    key: RecordKey
    version: int
    fingerprint: str
    window: float

    def put(self, request_id: str, at: Instant) -> Put:
        """Return the change that lets the key stand for a request; refused if another one came first."""
        value = KEYS.encode_own(KeyRecord(request_id, self.fingerprint))
        return Put(self.key, value, self.version, expires_at=later(at, LONGEST_RUN + self.window))

    def put_over(self, request_id: str, seen: Snapshot) -> tuple[Put, ...]:
        """Return that change given what lies there; nothing if it is done already.

        Raises:
            RacedError: Another one came first.
        """
        record = seen.get(self.key)
        if record is not None and KEYS.decode(record.value).request == request_id:
            return ()
        if seen.version(self.key) != self.version:
            raise RacedError
        return (self.put(request_id, seen.at),)

    @property
    def keep(self) -> float:
        """For how many seconds its request is to be kept after its end: the answer may be asked for again."""
        return max(KEPT, self.window)


def kept_until_end(key: RecordKey, request_id: str, keep: float, seen: Snapshot) -> tuple[Put, ...]:
    """Return the change that lets the key of a request that ends now go when that is forgotten, if it is its own."""
    record = seen.get(key)
    if record is None or KEYS.decode(record.value).request != request_id:
        return ()
    return (Put(key, record.value, record.version, expires_at=later(seen.at, keep)),)


class IdempotentReplay(Struct, frozen=True):
    """The request that was sent before, and has ended."""

    request_id: str
    view: RequestView


def fingerprint_of(arrival: Call, packed: bytes) -> str:
    """Return what tells a request that is sent again from another one: its checked inputs and its session."""
    return blake2b(arrival.session.encode() + b"\0" + packed, digest_size=16).hexdigest()


def place_of(scope: Scope, arrival: Call) -> RecordKey:
    """Return where the key of an arrival lies."""
    name = blake2b(arrival.idempotency_key.encode(), digest_size=20).hexdigest()
    return idempotency_of(scope, arrival.tenant).child(arrival.flow, arrival.action, arrival.user, name)


async def resolve(scope: Scope, arrival: Call, packed: bytes, window: float) -> IdempotencyClaim | IdempotentReplay:
    """Find out what the key of an arrival stands for.

    Raises:
        IdempotencyInFlightError: The same request was sent before and has not ended.
        IdempotencyMismatchError: Another one was sent with that key.
    """
    key, fingerprint = place_of(scope, arrival), fingerprint_of(arrival, packed)
    record = (await scope.read(key)).get(key)
    if record is None:
        return IdempotencyClaim(key, 0, fingerprint, window)
    known = KEYS.decode(record.value)
    free = IdempotencyClaim(key, record.version, fingerprint, window)
    keys, is_same = RequestKeys(scope, arrival.tenant, known.request), known.fingerprint == fingerprint
    try:
        view = await look(scope, keys)
        # One that is free is settled first: else it could still come to another end.
        while _is_free(view, window, is_same=is_same) and not await settle(scope, keys, view):
            view = await look(scope, keys)
    except RequestNotFoundError:
        return free  # its window is over
    if _is_free(view, window, is_same=is_same):
        return free
    if not is_same:
        raise IdempotencyMismatchError(known.request)
    if not view.has_ended:
        raise IdempotencyInFlightError(known.request)
    return IdempotentReplay(known.request, view)


def _is_free(view: RequestView, window: float, *, is_same: bool) -> bool:
    """Return True if a request ended so that one with its key is run, or longer ago than keys are remembered.

    One that was interrupted may have done a part of its work: only the same one is run again.
    """
    if view.status in AGAIN or (view.status == "interrupted" and view.record.retryable and is_same):
        return True
    return view.has_ended and later(view.record.ended_at, window) <= view.at
