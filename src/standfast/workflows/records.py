"""How a run lies in a store: its records, their keys, and the changes that create, claim and find it."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from standfast.clock import Instant, later
from standfast.codec import Codec
from standfast.errors import (
    EncodeError,
    IdempotencyKeyPurgedError,
    RunNotFoundError,
    WorkflowAlreadyExistsError,
)
from standfast.keys import RecordKey, encode_part, record_key
from standfast.locks.run_locks import ENDS, MOST_TAGS, listings
from standfast.stores.protocol import Check, Commit, Conflict, Decision, Delete, Put
from standfast.workflows.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot


# --- commits of which some changes hold whatever the record is at the moment ---------------------------------------


async def commit_over(
    scope: Scope,
    changes: Sequence[Change],
    over: Mapping[RecordKey, bytes | None],
    seen: Mapping[RecordKey, int] | None = None,
) -> Commit | Conflict:
    """Commit ``changes``, and write ``over`` whatever is there; None deletes it.

    Args:
        scope: Where.
        changes: What must hold as it is said; if it does not, that is the answer.
        over: What is written over anything.
        seen: The versions that those records were last seen with; what is missing is read.
    """
    versions = dict(seen or {})
    if missing := [key for key in over if key not in versions]:
        snapshot = await scope.read(*missing)
        versions.update({key: snapshot.version(key) for key in missing})
    writes = [change for key, value in over.items() for change in _write(key, value, versions[key])]
    answer = await scope.commit(*changes, *writes)
    if not isinstance(answer, Conflict) or any(key not in over for key in answer.current):
        return answer

    # Others write there too: thousands of children that end tell one parent. Decided in the store's own order none of
    # them is refused for another; tried again one by one, each would be refused by every one before it.
    def decide(seen: Snapshot) -> Decision[Conflict | None]:
        lost = {each.key: seen.get(each.key) for each in changes if seen.version(each.key) != each.expected}
        if lost:
            return Decision(Conflict(seen.at, lost))
        written = [change for key, value in over.items() for change in _write(key, value, seen.version(key))]
        return Decision(None, (*changes, *written))

    decided = await scope.update([*(each.key for each in changes), *over], decide)
    return Commit(decided.at, decided.versions) if decided.answer is None else decided.answer


def _write(key: RecordKey, value: bytes | None, version: int) -> list[Change]:
    if value is not None:
        return [Put(key, value, version)]
    return [Delete(key, version)] if version else []


# --- how a run lies in a store -------------------------------------------------------------------------------------

Status: TypeAlias = Literal[
    "pending", "running", "suspended", "quarantined", "completed", "failed", "cancelled", "timed_out"
]

ENDED: Final = ENDS
"""How a run ends. Everything else is unfinished."""


class Standing(Struct, frozen=True, omit_defaults=True):
    """A line in which a run stands from its start to its end.

    Attributes:
        address: Where the line lies.
        kind: As what: a limit or a schedule.
        permits: How many it admits, as far as the run's own code says.
        on_limit: What happens if it is full.
        label: What it is called for people: the partition.
        most_waiting: How many may wait in it.
        ttl: Seconds after which one that still waits is cancelled.
        entry: The id of the run's entry; empty: its own. A run that went on as a new one keeps its place.
        note: What is said about the run in the line.
    """

    address: tuple[str, ...]
    kind: str
    permits: int
    on_limit: str
    label: str
    most_waiting: int | None = None
    ttl: float | None = None
    entry: str = ""
    note: str = ""


class Header(Struct, frozen=True, omit_defaults=True):
    """What a run was started with. It never changes.

    When a run is deleted whose id can be used again, a header without a workflow stays: it says how often the id was.

    Attributes:
        incarnation: How many runs have had this id, this one included; 0: it was started by an early version, and the
            idempotency keys of its steps are made as they were then.
        chosen: Its id was chosen by the caller that started it, and may come again.
        trace: The trace context of the caller that started it, see :mod:`standfast.trace_context`; empty if none.
        sliced: The branches of a large group are started in slices, and none goes on before all have begun. False: it
            was started by an earlier version, and must be replayed as it went then.
    """

    workflow: str
    version: str
    input: Raw
    started_at: Instant
    root: str = ""
    parent: str = ""
    parent_step: str = ""
    depth: int = 0
    deadline: Instant | None = None
    begins_at: Instant | None = None
    idempotency_key: str = ""
    schedule: str = ""
    nominal_at: Instant | None = None
    lines: tuple[Standing, ...] = ()
    continued_from: str = ""
    mail_from: tuple[str, ...] = ()  # rule: the name is stored
    forked_from: str = ""
    tags: tuple[str, ...] = ()
    incarnation: int = 0
    chosen: bool = False
    trace: str = ""
    sliced: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether the run was deleted, and only how often its id was used is left."""
        return not self.workflow


class RunState(Struct, frozen=True, omit_defaults=True):
    """How a run is.

    Attributes:
        status: See :data:`Status`.
        workflow: As in the header, so that lists need not read it.
        version: As in the header.
        changed_at: Since when it is so.
        owner: The presence that drives it; empty if none does.
        claims: How often it was taken up.
        deaths: How many workers died with it in a row, without its history getting any longer.
        died_with: The latest of those, so that one that lives after all can be taken back.
        position: How many events its history had when it was last taken up.
        until: When it is to be looked at again at the latest: the name of its record in the timer index.
        waits_for: What it waits for, in words.
        admitted: In how many of its lines it holds a place, from the first on.
        ticket: Its ticket in the line in which it waits; None: it does not wait in one.
        collects: It stands in no line yet, and goes there at ``until``; meanwhile it collects events.
        cancel: Why it is to be cancelled; None: it is not.
        result: What it returned.
        failure: What it raised.
        continues: It went on as a new run, which has the result.
        leaving: It has ended and still has to leave lines.
        purging: It has ended, and its records are being deleted: it does not come back.
        leased: A run lock has been taken since a worker last drove it; see :mod:`standfast.locks.run_locks`.
        lease_awaited: A worker has found it leased, and is to be told of the release.
        traced: How many events of its history are exported as spans.
        pieces: In how many pieces they were.
        orphaned_at: When its worker was found dead; None: another one has driven it since.
        misfit_at: Since when each worker that took it up had code that does not fit its history or its input, and
            ``waits_for`` says what differs; None: it has gone on since, or that was never so.
        stops: From when to when it had ended, or was quarantined, before an operator let it go on; the latest ones.
    """

    status: Status
    workflow: str
    version: str
    changed_at: Instant
    owner: str = ""
    claims: int = 0
    deaths: int = 0
    position: int = 0
    until: Instant | None = None
    waits_for: str = ""
    admitted: int = 0
    ticket: int | None = None
    collects: bool = False
    cancel: str | None = None
    result: Raw | UnsetType = UNSET
    failure: Failure | None = None
    continues: bool = False
    leaving: bool = False
    purging: bool = False
    leased: bool = False
    lease_awaited: bool = False
    orphaned_at: Instant | None = None
    traced: int = 0
    pieces: int = 0
    misfit_at: Instant | None = None
    stops: tuple[tuple[Instant, Instant], ...] = ()
    died_with: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, for good."""
        return self.status in ENDED

    @property
    def is_misfit(self) -> bool:
        """Whether no worker drives it, because the code of each that tried does not fit it: a person has to help."""
        return self.misfit_at is not None and not self.owner and not self.has_ended


class Driven(Struct, frozen=True, omit_defaults=True):
    """Which worker took a run up, and when: with the first event that it recorded.

    Attributes:
        by: Its presence.
        at: When it took the run up, by the store's time.
        host: The machine that it runs on.
        process: The number of its process there.
    """

    by: str
    at: Instant
    host: str = ""
    process: int = 0


class HistoryEvent(Struct, frozen=True, omit_defaults=True, gc=False):
    """One entry of a run's history: how an operation of its context went.

    Attributes:
        kind: Which operation: ``step``, ``sleep``, ``signal`` ...
        id: Where in the code: the branch's path, a slash, the step id; without a path in the main branch.
        at: When, by the store's time.
        value: What it returned, as JSON.
        failure: What it raised.
        digest: Of the arguments, to notice that they have changed.
        until: For those that wait: until when.
        took: For how many microseconds the code of a step ran, until ``at``.
        due: When that was there which the run waited for; from then on it waited for a worker.
        driven: Which worker recorded this and what follows, until another one says so.
        link: The trace context of whatever sent what was received: a signal, an update.
    """

    kind: str
    id: str
    at: Instant
    value: Raw | UnsetType = UNSET
    failure: Failure | None = None
    digest: str = ""
    until: Instant | None = None
    took: int = 0
    due: Instant | None = None
    driven: Driven | None = None
    link: str = ""


class Chunk(Struct, frozen=True, rename={"events": "marks"}):
    """The events that one commit added to a history."""

    events: tuple[HistoryEvent, ...]


class Ownership(Struct, frozen=True):
    """The owner's grant of a run. Its version is the run's fence."""

    run: str
    claimed_at: Instant


class InboxItem(Struct, frozen=True, omit_defaults=True):
    """Something in a run's inbox: a signal, or an update that wants an answer.

    Attributes:
        kind: What it is.
        name: What the run knows it by.
        sent_at: When, by the store's time.
        id: Of a signal: empty if its sender gave none. Of an update: where its answer is put.
        value: What was sent, as JSON.
        is_named: Its sender chose the id and may ask again, so the answer is kept for as long as the run.
        trace: The trace context of its sender, if that was traced.
    """

    kind: Literal["signal", "update"]
    name: str
    sent_at: Instant
    id: str = ""
    value: Raw | UnsetType = UNSET
    is_named: bool = False
    trace: str = ""


class Counter(Struct, frozen=True):
    """How many items were put into an inbox."""

    next: int


class Once(Struct, frozen=True, omit_defaults=True):
    """What an idempotency key stands for. It outlives its run as a marker that the run was purged."""

    run: str
    digest: str = ""
    purged: bool = False


class WorkerRecord(Struct, frozen=True, omit_defaults=True):
    """A presence that drives runs. It is removed when everything that it drove is in other hands.

    Attributes:
        since: Since when it drives runs; 0: it does so no more.
        is_retired: Its engine was closed, so runs that it has left behind have not killed it.
    """

    since: Instant
    is_retired: bool = False


class Outlived(Struct, frozen=True):
    """The process of a presence that has lapsed lives. Only that it is there means anything."""


class Due(Struct, frozen=True, omit_defaults=True):
    """A record of the timer index: what is due at the instant in its key.

    Attributes:
        look_at: The address of a line to reap; the run itself has nothing to do yet.
        then: When the run itself has something to do; None: at no certain time.
    """

    look_at: tuple[str, ...] = ()
    then: Instant | None = None


class Ready(Struct, frozen=True):
    """A worker should look at the run. Only that it is there, and its version, mean anything."""


HEADERS: Final[Codec[Header]] = Codec(Header, what="the header of a run")
RUN_STATES: Final[Codec[RunState]] = Codec(RunState, what="the life of a run")
CHUNKS: Final[Codec[Chunk]] = Codec(Chunk, what="a part of a history")
OWNERSHIPS: Final[Codec[Ownership]] = Codec(Ownership, what="the ownership of a run")
ITEMS: Final[Codec[InboxItem]] = Codec(InboxItem, what="an item of an inbox")
COUNTERS: Final[Codec[Counter]] = Codec(Counter, what="the counter of an inbox")
ONCES: Final[Codec[Once]] = Codec(Once, what="an idempotency key")
WORKERS: Final[Codec[WorkerRecord]] = Codec(WorkerRecord, what="a worker")
DUES: Final[Codec[Due]] = Codec(Due, what="a timer")
READY: Final = Codec(Ready, what="a ready flag").encode(Ready())
NO_DUE: Final = DUES.encode(Due())
OUTLIVED: Final = Codec(Outlived, what="a worker that was taken for dead").encode(Outlived())


def gone(header: Header) -> Header | None:
    """Return what is left of the header of a run that is deleted; None: nothing, because its id does not come again.

    Children and runs that went on as a new one are named after another run, and count with it.
    """
    if header.parent or header.continued_from or not (header.chosen or not header.incarnation):
        return None
    return Header("", "", Raw(b"null"), header.started_at, incarnation=max(1, header.incarnation))


def effect_key(namespace: str, tenant: str, run_id: str, incarnation: int, step_id: str) -> str:
    """Return the idempotency key of a step: no two steps of any two runs have the same.

    It is ``run:step`` in the default namespace and tenant, for the first run of that id. Everything else is
    ``:namespace:tenant:run:incarnation:step``. Colons are escaped in all but the step, which comes last.

    Args:
        namespace: Where the run lies.
        tenant: Whose it is.
        run_id: The run.
        incarnation: See :class:`Header`.
        step_id: The step, with its branch's path.
    """
    if not incarnation:
        return f"{run_id}:{step_id}"
    if incarnation == 1 and namespace == tenant == "default":
        return f"{_without_colons(run_id)}:{step_id}"
    names = (namespace, tenant, run_id, str(incarnation))
    return f":{':'.join(map(_without_colons, names))}:{step_id}"


def _without_colons(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def packed_chunk(events: Sequence[HistoryEvent]) -> bytes:
    """Encode a part of a history. One without events is refused: it would lie where the next part has to be."""
    if not events:
        raise EncodeError("a part of a history has at least one mark; this is a defect of Standfast, please report it")
    return CHUNKS.encode_own(Chunk(tuple(events)))


@lru_cache(maxsize=1_000)
def _place(namespace: str, tenant: str, kind: str) -> bytes:
    return bytes(RecordKey(namespace, tenant, kind))


@lru_cache(maxsize=1_000)
def _owned_by(namespace: str, tenant: str, presence: str) -> bytes:
    return bytes(RecordKey(namespace, tenant, "own", presence))


@lru_cache(maxsize=1_000)
def _places(namespace: str, tenant: str) -> tuple[bytes, bytes, bytes]:
    """Return the places of what every run has: its header, its state and its history."""
    return _place(namespace, tenant, "run"), _place(namespace, tenant, "life"), _place(namespace, tenant, "step")


@final
class RunKeys:
    """Where the records of one run lie. A run names a dozen of them, so each is put together from encoded pieces."""

    __slots__ = ("_chunks", "_encoded", "_scope", "header", "id", "state")

    def __init__(self, scope: Scope, run_id: str) -> None:
        header, state, chunks = _places(scope.namespace, scope.tenant)
        self.id: Final = run_id
        self._scope: Final = scope
        encoded = encode_part(run_id)
        self._encoded: Final = encoded
        self.header: Final = record_key(header + encoded)
        self.state: Final = record_key(state + encoded)
        self._chunks: Final = chunks + encoded

    def _at(self, kind: str, rest: bytes = b"") -> RecordKey:
        place = _place(self._scope.namespace, self._scope.tenant, kind)
        return record_key(place + self._encoded + rest)

    @property
    def ready(self) -> RecordKey:
        """The flag that a worker should look at the run."""
        return self._at("ready")

    @property
    def counter(self) -> RecordKey:
        """How many items were put into the inbox."""
        return self._at("mail")

    @property
    def progress(self) -> RecordKey:
        """What the run last said about its progress."""
        return self._at("progress")

    def own(self, presence: str) -> RecordKey:
        """Return the key of the grant that a presence has, or would have, of this run."""
        return record_key(_owned_by(self._scope.namespace, self._scope.tenant, presence) + self._encoded)

    def chunk(self, position: int) -> RecordKey:
        """Return the key of the chunk whose first event has that position."""
        return record_key(b"%b%08d\x00\x01" % (self._chunks, position))

    def history(self) -> tuple[RecordKey, RecordKey]:
        """Return the range of all chunks."""
        return self._at("step").within()

    def item(self, number: int) -> RecordKey:
        """Return the key of an item of the inbox."""
        return self._at("inbox", b"%012d\x00\x01" % number)

    def inbox(self) -> tuple[RecordKey, RecordKey]:
        """Return the range of the whole inbox."""
        return self._at("inbox").within()

    def timer(self, at: Instant) -> RecordKey:
        """Return the key of this run in the timer index."""
        return timer_key(self._scope, at, self.id)

    def signal_seen(self, name: str, signal_id: str) -> RecordKey:
        """Return the key that says that a signal with this id was taken."""
        return self._at("signalled").child(name, signal_id)

    def update_seen(self, update_id: str) -> RecordKey:
        """Return the key that says that an update with this id was taken."""
        return self._scope.key("updated", self.id, update_id)

    def leavings(self, *, markers: bool = True) -> tuple[tuple[RecordKey, RecordKey], ...]:
        """Return the ranges of what a run leaves behind; with or without what says that something was sent to it."""
        kinds = ("step", "inbox", "answer", *(("signalled", "updated") if markers else ()))
        return tuple(self._scope.key(kind, self.id).within() for kind in kinds)

    def quarantined(self, tags: tuple[str, ...]) -> list[RecordKey]:
        """Return where it is listed, under its tags, that the run is quarantined."""
        return [quarantined_with(self._scope, tag).child(self.id) for tag in tags[:MOST_TAGS]]

    def listed(self, state: RunState, header: Header | None) -> dict[RecordKey, bytes]:
        """Return where the run is in the index of runs, and what is written there.

        Nowhere while a worker drives it: then its grant is found.
        """
        if state.owner:
            return {}
        tags, started_at = ((), None) if header is None else (header.tags, header.started_at)
        return listings(self._scope, state.status, state.workflow, state.changed_at, self._encoded, tags, started_at)

    def answer(self, update_id: str) -> RecordKey:
        """Return the key of the answer to an update."""
        return self._at("answer").child(update_id)


def quarantined_with(scope: Scope, tag: str) -> RecordKey:
    """Return what the keys of all runs begin with that have a tag and are quarantined."""
    return scope.key("quarantined", tag)


def timer_key(scope: Scope, at: Instant, name: str) -> RecordKey:
    """Return a key in the timer index; they sort by time."""
    return scope.key("timer", f"{at:016d}", name)


def listing(keys: RunKeys, state: RunState, header: Header | None) -> list[Change]:
    """Return the changes that list a run which was not listed before: a worker drove it, or it is new."""
    return [*starmap(Put, keys.listed(state, header).items())]


REMEMBERED: Final = 30 * 86_400.0
"""Seconds for which it is known that a worker which was taken for dead lived on. A step may take as long."""


def outlived_key(scope: Scope, presence: str) -> RecordKey:
    """Return where it is said that the process of a presence has outlived it."""
    return scope.key("outlived", presence)


async def tell_outlived(scope: Scope, presences: Iterable[str]) -> None:
    """Say that the process of these presences lives, so that it is not counted as a death that they have lapsed."""
    for presence in presences:
        key = outlived_key(scope, presence)
        seen = await scope.read(key)
        if seen.get(key) is None:
            await scope.commit(Put(key, OUTLIVED, seen.version(key), expires_at=later(seen.at, REMEMBERED)))


# --- the records of a run that is started, and finding the run that was started so before --------------------------


class Start(Struct, frozen=True, kw_only=True):
    """A start that is asked for."""

    workflow: Any
    packed: bytes
    restored: Any = None
    """The arguments as they will be read from ``packed``, for a run that begins in this process; None: not known."""
    run_id: str
    idempotency_key: str = ""
    delay: float = 0.0
    parent: str = ""
    parent_step: str = ""
    root: str = ""
    depth: int = 0
    drive: bool = False
    schedule: str = ""
    nominal_at: Instant | None = None
    tags: tuple[str, ...] = ()
    extra_changes: tuple[Any, ...] = ()
    forked_from: str = ""
    chosen: bool = False
    incarnation: int = 1
    trace: str = ""
    over: int = 0
    """The version of what a deleted run has left under this id; 0: nothing."""


class Started(Struct, frozen=True):
    """The run that a start came to: a new one, or one that was there."""

    run_id: str
    is_new: bool


def header_of(asked: Start, now: Instant, lines: tuple[Standing, ...] = ()) -> Header:
    """Return the header of a run that is started now."""
    timeout = asked.workflow.timeout
    return Header(
        asked.workflow.name,
        asked.workflow.version,
        msgspec.Raw(asked.packed),
        now,
        root=asked.root,
        parent=asked.parent,
        parent_step=asked.parent_step,
        depth=asked.depth,
        deadline=None if timeout is None else later(now, asked.delay + timeout),
        begins_at=later(now, asked.delay) if asked.delay else None,
        idempotency_key=asked.idempotency_key,
        schedule=asked.schedule,
        nominal_at=asked.nominal_at,
        lines=lines,
        forked_from=asked.forked_from,
        tags=asked.tags,
        incarnation=asked.incarnation,
        chosen=asked.chosen,
        trace=asked.trace,
        sliced=True,
    )


def first_state(asked: Start, now: Instant, presence: str) -> RunState:
    """Return the state of a run that is started now, by a worker that drives it or for any worker."""
    name, version = asked.workflow.name, asked.workflow.version
    if presence:
        return RunState("running", name, version, now, owner=presence, claims=1)
    if asked.delay:
        return RunState("pending", name, version, now, until=later(now, asked.delay), waits_for="the time of its start")
    return RunState("pending", name, version, now, waits_for="a worker")


def creation(
    scope: Scope,
    asked: Start,
    now: Instant,
    state: RunState,
    lines: tuple[Standing, ...] = (),
    *,
    ready: bool = True,
    made: tuple[RunKeys, Header] | None = None,
) -> list[Change]:
    """Return the changes that create a run. They are refused if it, or its idempotency key, exists.

    ``made`` are its keys and its header, if the caller has made them already.
    """
    keys, header = made or (RunKeys(scope, asked.run_id), header_of(asked, now, lines))
    changes: list[Change] = [
        Put(keys.header, HEADERS.encode_own(header), asked.over),
        Put(keys.state, RUN_STATES.encode_own(state)),
    ]
    if state.until is not None:
        changes.append(Put(keys.timer(state.until), NO_DUE))
    elif not state.owner and ready:
        changes.append(Put(keys.ready, READY))
    if asked.idempotency_key:
        once = scope.key("once", asked.idempotency_key)
        changes.append(Put(once, ONCES.encode_own(Once(asked.run_id))))
    if not state.owner:
        changes += listing(keys, state, header)
    return changes


def after_gone(asked: Start, record: Record | None) -> Start | None:
    """Return a start that begins anew where a deleted run had the same id; None if there is something else, or nothing.

    Args:
        asked: The start.
        record: The header that it has met.
    """
    header = None if record is None else HEADERS.decode(record.value)
    if record is None or header is None or not header.is_gone or record.version == asked.over:
        return None
    return structs.replace(asked, incarnation=header.incarnation + 1, over=record.version)


def met_by(asked: Start, once: Record | None) -> str:
    """Return the id of the run that a start means: that of its idempotency key, if there is such a record."""
    if once is None:
        return asked.run_id
    found = ONCES.decode(once.value)
    if found.purged:
        raise IdempotencyKeyPurgedError(asked.idempotency_key, found.run)
    return found.run


async def found(scope: Scope, asked: Start, conflict: Conflict) -> Started:
    """Find the run that a start has met: the same one, or another with its name."""
    once_key = scope.key("once", asked.idempotency_key) if asked.idempotency_key else None
    run_id = met_by(asked, None if once_key is None else conflict.current.get(once_key))
    await check_same(scope, asked, run_id)
    return Started(run_id, is_new=False)


async def find_there(scope: Scope, asked: Start, conflict: Conflict) -> Started | None:
    """Find the run that a start has met; None if it was purged at this very moment, so that the start is tried again.

    Of a start that brings changes along, those may have been refused: the caller that made them has to try again.
    """
    try:
        return await found(scope, asked, conflict)
    except RunNotFoundError:
        if asked.extra_changes:
            raise
        return None


async def check_same(scope: Scope, asked: Start, run_id: str) -> None:
    """Refuse a start that has the name of another run."""
    keys = RunKeys(scope, run_id)
    compare(asked, keys, await scope.read(keys.header, keys.state))


def compare(asked: Start, keys: RunKeys, seen: Snapshot) -> None:
    """Refuse a start that has the name of another run, as a snapshot of it shows; refuse it too if there is none."""
    header, state = seen.get(keys.header), seen.get(keys.state)
    if header is None or state is None:
        raise RunNotFoundError(keys.id)
    there = HEADERS.decode(header.value)
    is_other = there.workflow != asked.workflow.name
    if is_other or bytes(there.input) != asked.packed:
        status = RUN_STATES.decode(state.value).status
        raise WorkflowAlreadyExistsError(keys.id, status, "workflow" if is_other else "input")


# --- reading a history -----------------------------------------------------------------------------------------------


HISTORY_PAGE: Final = 500

A_TURN: Final = 2_000
"""How many events of a history are decoded in one turn of the event loop."""


async def events_of(scope: Scope, keys: RunKeys, *, first: int = 0) -> list[HistoryEvent]:
    """Read a run's history, whole or from the beginning of a chunk on."""
    events: list[HistoryEvent] = []
    start, end, seen = *keys.history(), 0
    start = keys.chunk(first) if first else start
    while True:
        page = await scope.scan(start, end, limit=HISTORY_PAGE)
        for record in page.records.values():
            events.extend(CHUNKS.decode(record.value).events)
            if len(events) - seen >= A_TURN:
                seen = len(events)
                await asyncio.sleep(0)  # others go on meanwhile
        if page.more is None:
            return events
        start = page.more


async def far_children(scope: Scope, parent: str) -> list[str]:
    """Return the children of a run whose ids do not begin with its own, because they would be too long."""
    events = await events_of(scope, RunKeys(scope, parent))
    ids = (
        msgspec.json.decode(event.value, type=str)
        for event in events
        if event.kind == "child" and event.value is not UNSET
    )
    return [child for child in ids if not child.startswith(f"{parent}.")]


# --- finding a run by its records ------------------------------------------------------------------------------------


class Found(Struct, frozen=True):
    """A run as its records show it."""

    id: str
    header: Header
    state: RunState
    state_version: int


def found_in(seen: Snapshot, keys: RunKeys) -> Found:
    """Return the run that a snapshot of its header and its life shows; refuse if there is none."""
    header, state = seen.get(keys.header), seen.get(keys.state)
    if header is None or state is None:
        raise RunNotFoundError(keys.id)
    return Found(keys.id, HEADERS.decode(header.value), RUN_STATES.decode(state.value), state.version)


async def find(scope: Scope, run_id: str) -> Found:
    """Read a run's header and life."""
    keys = RunKeys(scope, run_id)
    return found_in(await scope.read(keys.header, keys.state), keys)


def state_in(seen: Snapshot, keys: RunKeys) -> RunState:
    """Return the life that a snapshot shows; refuse if there is no such run."""
    record = seen.get(keys.state)
    if record is None:
        raise RunNotFoundError(keys.id)
    return RUN_STATES.decode(record.value)


class WorkerPresence(Struct, frozen=True):
    """This engine as a worker: the name of its presence, and the guard of everything that it claims."""

    presence: str
    guard: Check


# --- claiming a run: what a worker writes ----------------------------------------------------------------------------


def taken(state: RunState, presence: str, at: Instant) -> RunState:
    """Return the state of a run that a worker has taken up."""
    return structs.replace(
        state,
        status="running",
        owner=presence,
        claims=state.claims + 1,
        changed_at=at,
        until=None,
        waits_for="",
        collects=False,
        leased=False,
        lease_awaited=False,
        orphaned_at=None,
    )


def taking(
    keys: RunKeys, header: Header, worker: WorkerPresence, before: RunState, after: RunState, seen: Snapshot
) -> list[Change]:
    """Return the changes with which a worker takes up a run; ``seen`` shows all that they touch."""
    own = keys.own(worker.presence)
    return [
        worker.guard,
        Put(keys.state, RUN_STATES.encode_own(after), seen.version(keys.state)),
        Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), seen.version(own)),
        *deletion_of(seen, keys.ready),
        *([] if before.until is None else deletion_of(seen, keys.timer(before.until))),
        *deletion_of(seen, *keys.listed(before, header)),
    ]


def relisting(keys: RunKeys, header: Header, before: RunState, after: RunState, seen: Snapshot) -> list[Change]:
    """Return the changes of the index of runs that go with a change of a run that is not driven, before or after."""
    old, new = keys.listed(before, header), keys.listed(after, header)
    if old == new:
        return []
    gone = [key for key in old if key not in new]
    return [*deletion_of(seen, *gone), *(Put(key, value, seen.version(key)) for key, value in new.items())]


def deletion_of(seen: Snapshot, *keys: RecordKey) -> list[Change]:
    """Return the changes that delete records, those that there are."""
    return [Delete(key, version) for key in keys if (version := seen.version(key))]
