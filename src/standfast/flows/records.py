"""What lies in the store of a request: its record, its events, its session's state, and what speaks for its key.

Every key of this module has the tenant of a principal in it, and there is no other way to one: a request of another
tenant cannot be named, so it is absent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import UNSET, Raw, Struct, UnsetType, field, structs

from standfast.clock import Instant, later
from standfast.codec import Codec
from standfast.flows.request import ENDED, Address, Call, Principal, Status
from standfast.flows.shares import sharer_of
from standfast.ids import new_id
from standfast.keys import MAX_KEY_BYTES, RecordKey, encode_parts
from standfast.stores.protocol import Delete, Put
from standfast.workflows.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Snapshot


# --- what lies in the store of a request: its record, its events, its session's state, and what speaks for its key -

AGAIN: Final[frozenset[str]] = frozenset({"cancelled", "refused", "superseded"})
"""Ends of requests that left nothing behind: another one with the same idempotency key is run."""

SUPERSEDING: Final = ("restart", "latest")
"""The policies by which a request takes the place of those of its action that wait."""

UNFINISHED_FOR: Final = 31 * 86_400.0
"""Seconds for which a durable request counts as unfinished, should its end not be written down."""

CANCEL_FOR: Final = 86_400.0
"""Seconds for which another server may find that it is to stop a request; one that has died never looks."""

NOTHING: Final = b"1:{}"
"""The value of a record that says something by being there."""

OPEN: Final = "open"
"""How a request that has not ended is listed: whether it waits or runs, its record or its run says."""

KEPT: Final = 3_600.0
"""Seconds for which a request can be asked about after its end."""

SESSION_KEPT: Final = 30 * 86_400.0
"""Seconds for which the state of a session, and whose it is, are kept after their last use, if nothing else is said."""


new_request_id: Final = new_id.long
"""Returns an id that sorts by time and cannot be guessed: 128 bits of it are random."""


class RequestRecord(Struct, frozen=True, omit_defaults=True):
    """A request, as others see it.

    Attributes:
        flow: The kind of its flow.
        action: The name of its action.
        status: How it is, as far as its process has written that. Of a durable one that has not ended, its run tells.
        received_at: When it was taken on, by the store's time.
        started_at: When it began to run; 0: not yet.
        ended_at: When it ended; 0: not yet.
        user: Who asked.
        session: In which conversation.
        transport: What it came by.
        durable: It is a run of a workflow, with the same id.
        attempt: How often it was begun.
        owner: The presence of the process that runs it; empty if it is durable. If that is gone, it was interrupted.
        server: Where news for that process is sent: the name of the opening of its space.
        address: The line of its key; empty: it needs no turn.
        policy: The name of the policy of its action.
        reason: Why it ended without a result.
        result: What it returned.
        failure: What it raised.
        by: The request that took its place.
        cancelled_by: Who asked for it to stop, see :mod:`standfast.flows.view`; empty: not known.
        verdict: What was decided when it came: ``run``, ``queued``, ``started`` or ``collected``, see
            :class:`~standfast.events.RequestDecided`; empty: it was written before that was kept.
        superseded: The requests whose place it took.
        overlap: One of those had not ended when it began.
        retryable: If it was interrupted, another one with the same idempotency key is run.
        keep: Seconds for which it is kept after its end.
        inputs: What it brought, for a request that takes its place; only where its policy hands that over.
    """

    flow: str
    action: str
    status: Status
    received_at: Instant
    started_at: Instant = Instant(0)
    ended_at: Instant = Instant(0)
    user: str = ""
    session: str = ""
    transport: str = ""
    durable: bool = False
    attempt: int = 0
    owner: str = ""
    server: str = ""
    address: Address = ()
    policy: str = ""
    reason: str = ""
    result: Raw | UnsetType = UNSET
    failure: Failure | None = None
    by: str = ""
    superseded: tuple[str, ...] = ()
    overlap: bool = False
    retryable: bool = True
    keep: float = KEPT
    inputs: Raw | UnsetType = UNSET
    cancelled_by: str = ""
    verdict: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it is over, as far as was written."""
        return self.status in ENDED


def ended(
    record: RequestRecord,
    status: Status,
    at: Instant,
    *,
    reason: str = "",
    result: bytes | None = None,
    failure: Failure | None = None,
    cancelled_by: str = "",
) -> RequestRecord:
    """Return the record of a request that ends."""
    raw = UNSET if result is None else Raw(result)
    changes: dict[str, Any] = {"status": status, "ended_at": at, "reason": reason, "result": raw, "failure": failure}
    if cancelled_by or record.cancelled_by:
        changes["cancelled_by"] = cancelled_by or (record.cancelled_by if status == "cancelled" else "")
    return structs.replace(record, **changes)


class EventRecord(Struct, frozen=True, omit_defaults=True):
    """Something that a request told while it ran."""

    name: str
    at: Instant
    data: Raw = Raw(b"null")


class SessionRecord(Struct, frozen=True):
    """The state of a session."""

    state: dict[str, Any]


class CancelRecord(Struct, frozen=True, omit_defaults=True):
    """A caller wants a request to stop that runs in another process."""

    reason: str
    cancelled_by: str = ""


class ListedRequest(Struct, frozen=True, omit_defaults=True):
    """What the index says of a request, besides its key.

    Attributes:
        user: Who asked; None: a version has written it that did not say.
    """

    user: str | None = None


class OnceRecord(Struct, frozen=True, omit_defaults=True):
    """What a call returned that a request makes once."""

    result: Raw


class UnfinishedRecord(Struct, frozen=True, omit_defaults=True):
    """A durable request has not ended; ``sharer`` says as whose it is counted."""

    sharer: str = ""


REQUESTS: Final[Codec[RequestRecord]] = Codec(RequestRecord, what="a request")
EVENTS: Final[Codec[EventRecord]] = Codec(EventRecord, what="an event")
SESSIONS: Final[Codec[SessionRecord]] = Codec(SessionRecord, what="the state of a session")
CANCELS: Final[Codec[CancelRecord]] = Codec(CancelRecord, what="a cancellation")
UNFINISHED: Final[Codec[UnfinishedRecord]] = Codec(UnfinishedRecord, what="the mark of an unfinished request")
ONCES: Final[Codec[OnceRecord]] = Codec(OnceRecord, what="the result of a call")
LISTED: Final[Codec[ListedRequest]] = Codec(ListedRequest, what="an entry of the index of requests")


def listed_value(record: RequestRecord) -> bytes:
    """Return what the entry of a request in the index holds."""
    return LISTED.encode_own(ListedRequest(record.user))


@final
class RequestKeys:
    """Where the records of one request of one tenant lie."""

    __slots__ = ("_listed", "_record", "_scope", "id", "tenant")

    def __init__(self, scope: Scope, tenant: str, request_id: str) -> None:
        self._scope: Final = scope
        self.tenant, self.id = tenant, request_id
        self._record: RecordKey | None = None
        self._listed: dict[tuple[str, str, Instant], tuple[RecordKey, ...]] = {}

    @property
    def record(self) -> RecordKey:
        """Where it is written how it is."""
        if self._record is None:  # requests without a record never ask
            self._record = self._scope.key("request", self.tenant, self.id)
        return self._record

    @property
    def cancel(self) -> RecordKey:
        """Where it is asked to stop."""
        return self._scope.key("cancel", self.tenant, self.id)

    @property
    def events(self) -> RecordKey:
        """What the keys of all its events begin with."""
        return self._scope.key("event", self.tenant, self.id)

    def event(self, number: int) -> RecordKey:
        """Return the key of an event; they sort by their numbers."""
        return self.events.child(f"{number:012d}")

    @property
    def unfinished(self) -> RecordKey:
        """Where it lies that it is durable and has not ended, to be counted."""
        return unfinished_of(self._scope, self.tenant).child(self.id)

    def first(self, record: RequestRecord, at: Instant) -> tuple[Put, ...]:
        """Return what is written when a durable request is taken on, besides its run."""
        sharer = UNFINISHED.encode_own(UnfinishedRecord(sharer_of(record.user, record.transport)))
        unfinished = Put(self.unfinished, sharer, expires_at=later(at, UNFINISHED_FOR))
        return Put(self.record, REQUESTS.encode_own(record)), unfinished, *self.listing(record)

    def listed(self, record: RequestRecord, state: str = "") -> tuple[RecordKey, ...]:
        """Return where the request is in the index of requests, see :mod:`standfast.flows.request_list`.

        A key that no store would take is left out: a request must be able to end, whatever its tenant is called.

        Args:
            record: How it is.
            state: Among which requests, if not among those that are as the record says.
        """
        state = state or (record.status if record.has_ended else OPEN)
        asked = (state, "" if state == OPEN else record.verdict, record.received_at)
        known = self._listed.get(asked)  # it is asked for when keys are named, and again when they are written
        if known is None:
            where = (self._scope.namespace, self._scope.tenant, "requests", self.tenant)
            lane = _lane(*where, state, record.flow, record.action, asked[1])
            key = lane + b"%016d\x00\x01" % record.received_at + encode_parts((self.id,))
            known = (RecordKey.from_encoded(key),) if len(key) <= MAX_KEY_BYTES else ()
            self._listed[asked] = known
        return known

    def listing(self, record: RequestRecord) -> list[Put]:
        """Return what lists a request that has just come."""
        return [Put(key, listed_value(record)) for key in self.listed(record)]

    def ending(self, record: RequestRecord) -> tuple[RecordKey, ...]:
        """Return what is read and written when a request ends as its record says."""
        return (self.record, *self.listed(record, OPEN), *self.listed(record))

    def end(self, record: RequestRecord, version: int, seen: Snapshot) -> list[Change]:
        """Return the changes that write down how a request has ended; its records go by themselves after a while."""
        until = later(seen.at, record.keep)
        put = Put(self.record, REQUESTS.encode_own(record), version, expires_at=until)
        gone = [Delete(key, there) for key in self.listed(record, OPEN) if (there := seen.version(key))]
        listed, value = self.listed(record), listed_value(record)
        return [put, *gone, *(Put(key, value, seen.version(key), expires_at=until) for key in listed)]

    @property
    def sharers(self) -> RecordKey:
        """What the keys of all begin with who share its run."""
        return self._scope.key("sharer", self.tenant, self.id)

    def sharer(self, user: str) -> RecordKey:
        """Return where it lies that another user shares its run."""
        return self.sharers.child(user)

    def once(self, name: str) -> RecordKey:
        """Return where the result of a call lies that is made once."""
        return self._scope.key("onced", self.tenant, self.id, name)


@lru_cache(maxsize=10_000)
def _lane(*parts: str) -> bytes:
    return encode_parts(parts)


def unfinished_of(scope: Scope, tenant: str) -> RecordKey:
    """Return what the keys of all durable requests of a tenant begin with that have not ended."""
    return scope.key("unfinished", tenant)


def idempotency_of(scope: Scope, tenant: str) -> RecordKey:
    """Return what all idempotency keys of a tenant begin with."""
    return scope.key("idempotency", tenant)


def session_key(scope: Scope, tenant: str, session: str) -> RecordKey:
    """Return where the state of a session lies."""
    return scope.key("session", tenant, session)


def number_of(key: RecordKey) -> int:
    """Return the number of an event by its key."""
    return int(key.parts[-1])


class StoredRequest(Struct, frozen=True):
    """A request as it was found in the store."""

    keys: RequestKeys
    record: RequestRecord

    @property
    def id(self) -> str:
        """Its id."""
        return self.keys.id

    @property
    def address(self) -> Address | None:
        """The line in which it needs a turn; None: it needs none."""
        return self.record.address or None


# --- A request as it is stored with its run ------------------------------------------------------------------------


class StoredCall(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request as it is stored with its run: who asks, and what with.

    ``at`` is when its event happened, in seconds, if its transport knows.
    """

    flow: str
    action: str
    tenant: str
    inputs: dict[str, Any]
    user: str = ""
    roles: tuple[str, ...] = ()
    session: str = ""
    transport: str = "local"
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    idempotency_key: str = ""
    address: Address = ()
    chain: tuple[Address, ...] = ()
    at: float | None = None

    @property
    def arrival(self) -> Call:
        """What arrived."""
        return Call(
            flow=self.flow,
            action=self.action,
            inputs=self.inputs,
            principal=Principal(self.tenant, self.user, frozenset(self.roles)),
            session=self.session,
            transport=self.transport,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- checked when it arrived
            metadata=self.metadata,
            idempotency_key=self.idempotency_key,
            attended=False,
            chain=self.chain,
        )


class RunInput(Struct, frozen=True):
    """What a run is started with; nothing if its events lie in its inbox."""

    call: StoredCall | None = None


_TENANT: Final = "tenant:"


def tags_of(tenant: str) -> tuple[str, ...]:
    """Return the tags of the run of a request."""
    return (_TENANT + tenant,)


def tenant_in(tags: Iterable[str]) -> str | None:
    """Return whose request a run is, by its tags; None: it is not the run of a request."""
    return next((tag.removeprefix(_TENANT) for tag in tags if tag.startswith(_TENANT)), None)
