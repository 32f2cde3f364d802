"""Effects that happen exactly once: they live in the store's own database, in one transaction with their record."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from standfast.clock import Instant
from standfast.errors import DeclarationError, DecodeError, EncodeError, UnsuitableStoreError, WorkTimeoutError
from standfast.exits import FAILURES, as_failure, failure_of, is_from_signal
from standfast.scope import Scope
from standfast.stores.protocol import Conflict, Decided, Decision, Record, Snapshot
from standfast.workflows.control import Unload
from standfast.workflows.failures import describe, restore
from standfast.workflows.records import HistoryEvent
from standfast.workflows.runtime import called
from standfast.workflows.steps import (
    LARGEST,
    JournalRefusedError,
    ask,
    commit_with_journal,
    known,
    note_resumed,
    outcome_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change
    from standfast.workflows.activation import Activation
    from standfast.workflows.definition import Step
    from standfast.workflows.replay import Branch
    from standfast.workflows.steps import JournalCommit


# --- the store as seen by one run: what it reads is recorded, and what it changes is changed once ------------------
#
# It stands in for the scope of a state or a rate limiter. Each read and each update is an operation of the run: done
# live it is recorded, in the commit that changes something; replayed it is answered from the record.

T = TypeVar("T")

_FORMAT: Final = b"1:"  # what every record of ours begins with; the rest is JSON


class SeenRecord(Struct, frozen=True, omit_defaults=True):
    """One record as an operation saw it. Version 0: there was none."""

    version: int = 0
    value: Raw | UnsetType = UNSET


class RecordsRead(Struct, frozen=True):
    """What an operation saw: records in the order of the keys that it asked for, and the store's time."""

    at: Instant
    records: tuple[SeenRecord, ...]

    @classmethod
    def of(cls, snapshot: Snapshot, keys: Sequence[RecordKey]) -> RecordsRead:
        """Return what a snapshot shows of some keys."""
        return cls(snapshot.at, tuple(_seen(snapshot.get(key)) for key in keys))

    def snapshot(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Return the snapshot that this was made of."""
        pairs = zip(keys, self.records, strict=False)
        return Snapshot(self.at, {key: _record(key, each) for key, each in pairs if each.version})


def _seen(record: Record | None) -> SeenRecord:
    if record is None:
        return SeenRecord()
    if not record.value.startswith(_FORMAT):
        return SeenRecord(record.version)  # not ours: only its version can matter
    return SeenRecord(record.version, Raw(record.value.removeprefix(_FORMAT)))


def _record(key: RecordKey, seen: SeenRecord) -> Record:
    return Record(key, b"" if seen.value is UNSET else _FORMAT + bytes(seen.value), seen.version)


_seens: Final = msgspec.json.Decoder(RecordsRead)
_versions: Final = msgspec.json.Decoder(dict[int, int])


class _Outcome(Struct, Generic[T], frozen=True):
    """What a decision came to: its answer, or what it raised."""

    answer: T | None
    problem: Exception | None = None

    def result(self) -> T:
        """Return the answer, or raise."""
        if self.problem is not None:
            raise self.problem
        return cast("T", self.answer)


@final
class RecordedScope(Scope):
    """A run's own view of its space.

    Args:
        activation: The run.
        find_branch: Returns the branch that asks, or refuses.
        name: The name of its operations.
        answers: The type of the answers of updates, if those are to be recorded. By default what the decision saw is
            recorded, and it is made again when the run is replayed: then it must be a pure function.
    """

    def __init__(
        self,
        activation: Activation,
        find_branch: Callable[[str], Branch],
        name: str,
        *,
        answers: Any = None,  # noqa: ANN401 -- any type that msgspec reads
    ) -> None:
        space = activation.runtime.space
        super().__init__(space.store, namespace=space.namespace, tenant=space.tenant)
        self.hooks = activation.runtime.hooks
        self._activation, self._find_branch, self._name = activation, find_branch, name
        self._answers: Final = None if answers is None else msgspec.json.Decoder(answers)

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records, once."""
        activation, branch, operation = self._begin()
        event = await activation.turn(branch, ("read", "cancelled"), operation)
        if event is None:
            await activation.flush(branch, operation)
            seen = RecordsRead.of(await ask(activation, activation.runtime.space.read(*keys)), keys)
            event = HistoryEvent("read", operation, activation.runtime.now(), _packed(seen))
            activation.note(event)
        return _seens.decode(event.value or b"").snapshot(keys)

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide and commit, once."""
        activation, branch, operation = self._begin()
        kinds = (self._name, "went_on", "cancelled")
        event = await activation.turn(branch, kinds, operation)
        if event is None:
            return await self._update(branch, operation, tuple(keys), decide)
        went_on = await activation.turn(branch, kinds, operation)
        outcome = self._again(event, tuple(keys), decide)
        if went_on is None:
            went_on = note_resumed(activation, operation, self._versions(event))
        versions = _versions.decode(went_on.value or b"{}")
        return Decided(outcome.result(), event.at, {keys[place]: version for place, version in versions.items()})

    def _begin(self) -> tuple[Activation, Branch, str]:
        branch = self._find_branch(self._name)
        return self._activation, branch, branch.next_id(self._name)

    async def _update(
        self, branch: Branch, operation: str, keys: tuple[RecordKey, ...], decide: Callable[[Snapshot], Decision[T]]
    ) -> Decided[T]:
        activation = self._activation

        async def send(sent: JournalCommit) -> Decided[_Outcome[T]]:
            def decide_both(seen: Snapshot) -> Decision[_Outcome[T]]:
                sent.check(seen)
                own = Snapshot(seen.at, {key: record for key, record in seen.records.items() if key in keys})
                outcome, changes, wakes = _decided(decide, own)
                event = self._event(operation, outcome, own, keys)
                if event.failure is not None:
                    changes = ()
                    outcome = _Outcome[T](None, restore(event.failure, activation.runtime.known))
                return Decision(outcome, _once(changes, sent.changes(event)), before=sent.before, wake=wakes)

            decided = await activation.runtime.space.update(tuple(dict.fromkeys((*keys, *sent.keys))), decide_both)
            sent.versions = known(decided)
            return decided

        decided = await commit_with_journal(activation, branch, operation, send)
        versions = {place: decided.versions[key] for place, key in enumerate(keys) if key in decided.versions}
        note_resumed(activation, operation, msgspec.json.encode(versions) if versions else None)
        activation.runtime.saw(decided.at)
        found = {keys[place]: version for place, version in versions.items()}
        return Decided(decided.answer.result(), decided.at, found)

    def _event(self, operation: str, outcome: _Outcome[Any], seen: Snapshot, keys: Sequence[RecordKey]) -> HistoryEvent:
        """Return the record of a decision: what it saw or answered; or that this is too large to be recorded."""
        known_errors = self._activation.runtime.known
        if self._answers is not None and outcome.problem is not None:
            return HistoryEvent(self._name, operation, seen.at, failure=describe(outcome.problem, known_errors))
        value = _packed(RecordsRead.of(seen, keys) if self._answers is None else outcome.answer)
        if len(bytes(value)) <= LARGEST:
            return HistoryEvent(self._name, operation, seen.at, value)
        refused = EncodeError(f"what {operation} read takes more than {LARGEST:,} bytes, too much to be recorded")
        return HistoryEvent(self._name, operation, seen.at, failure=describe(refused, known_errors))

    def _again(
        self, event: HistoryEvent, keys: tuple[RecordKey, ...], decide: Callable[[Snapshot], Decision[T]]
    ) -> _Outcome[T]:
        if event.failure is not None:
            return _Outcome(None, restore(event.failure, self._activation.runtime.known))
        if self._answers is not None:
            return _Outcome(self._answers.decode(event.value or b"null"))
        return _decided(decide, _seens.decode(event.value or b"").snapshot(keys))[0]

    def _versions(self, event: HistoryEvent) -> bytes | None:
        """Return a version for a write whose own was not recorded, because the process died just then.

        It is the one before, so that a later write which depends on it is refused rather than done wrongly.
        """
        if self._answers is not None or event.failure is not None:
            return None
        before = _seens.decode(event.value or b"").records
        return msgspec.json.encode({0: before[0].version}) if before else None


def _decided(
    decide: Callable[[Snapshot], Decision[T]], seen: Snapshot
) -> tuple[_Outcome[T], tuple[Change, ...], tuple[Any, ...]]:
    try:
        decision = decide(seen)
    except FAILURES as raised:  # whatever an updater raises is the outcome, live as in replay
        return _Outcome(None, failure_of(raised)), (), ()
    return _Outcome(decision.answer), decision.changes, decision.wake


def _packed(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _once(changes: tuple[Change, ...], more: tuple[Change, ...]) -> tuple[Change, ...]:
    """Return all changes, each key once: a guard that the decision has too is dropped."""
    own = {change.key for change in changes}
    return (*changes, *(change for change in more if change.key not in own))


# --- effects that happen exactly once: they live in the store's own database, in one transaction with their record -

TRANSACTION: Final = ("transaction", "went_on", "cancelled")


async def transaction(
    activation: Activation,
    branch: Branch,
    step: Step[..., Any],
    operation: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seconds: float,
) -> Any:  # noqa: ANN401 -- whatever the function returns
    """Run a function on the store's own connection, and record what came of it in the same transaction."""
    capabilities = activation.runtime.space.store.capabilities
    if not capabilities.commit_with:
        raise UnsuitableStoreError(
            capabilities.backend, "it has no SQL to share a transaction with; use ctx.step, or sqlite:// or another one"
        )
    if capabilities.reach != "network" and inspect.iscoroutinefunction(step.function):
        raise DeclarationError(
            f"ctx.transaction({step.name})", "on this store it takes a plain function: its file is locked meanwhile"
        )
    event = await activation.turn(branch, TRANSACTION, operation)
    if event is not None and event.failure is None and await activation.turn(branch, TRANSACTION, operation) is None:
        note_resumed(activation, operation)
    if event is None:
        event = await _execute(activation, branch, step, operation, args, kwargs, seconds)
    try:
        return outcome_of(event, step, activation.runtime.known_with(step.options.raises))
    except DecodeError as problem:
        if event.failure is not None:
            raise
        activation.differ(f"another type of result of transaction {operation!r}", f"the declared one: {problem}")
        raise Unload from None


async def _execute(
    activation: Activation,
    branch: Branch,
    step: Step[..., Any],
    operation: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seconds: float,
) -> HistoryEvent:
    now = activation.runtime.now()
    raised: list[BaseException] = []
    events: list[HistoryEvent] = []
    rides: list[JournalCommit] = []

    def work(connection: Any) -> Any:  # noqa: ANN401 -- whatever the store has
        answer = _remembering(raised, lambda: called(step.function, (connection, *args), kwargs))
        return _awaited(answer, raised) if inspect.isawaitable(answer) else answer

    def record(answer: object) -> Sequence[Change]:
        packed = _remembering(raised, lambda: _packed_result(step, operation, answer))
        events[:] = [HistoryEvent("transaction", operation, now, Raw(packed))]
        return rides[-1].written(events[0])

    async def send(riding: JournalCommit) -> None:
        rides.append(riding)
        space, others = activation.runtime.space, riding.others()
        answer = await space.commit_with(work, *others, before=riding.before, timeout=seconds, extra_changes=record)
        if isinstance(answer, Conflict):
            raise JournalRefusedError(answer)
        riding.versions = known(answer)

    try:
        await commit_with_journal(activation, branch, operation, _keeping(send, raised))
    except _FailedError:
        failure = describe(raised[-1], activation.runtime.known_with(step.options.raises))
        event = HistoryEvent("transaction", operation, now, failure=failure)
        activation.note(event)
        return event
    note_resumed(activation, operation)
    return events[0]


class _FailedError(Exception):
    """The function raised, or took too long: everything was undone, and that is its outcome."""


def _keeping(send: Callable[[JournalCommit], Any], raised: list[BaseException]) -> Callable[[JournalCommit], Any]:
    """Tell what the function raised from what the store did."""

    async def sending(riding: JournalCommit) -> None:
        raised.clear()
        try:
            await send(riding)
        except WorkTimeoutError as problem:
            raised.append(problem)
            raise _FailedError from problem
        except Exception as problem:
            if not raised or raised[-1] not in (problem, problem.__cause__):
                raise
            raise _FailedError from problem

    return sending


def _remembering(raised: list[BaseException], call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- whatever it returns
    try:
        return call()
    except BaseException as problem:
        raised.append(problem)
        raise


async def _awaited(answer: Awaitable[Any], raised: list[BaseException]) -> Any:  # noqa: ANN401 -- whatever it returns
    try:
        return await answer
    except asyncio.CancelledError:  # the function has not raised it
        raise
    except (KeyboardInterrupt, SystemExit) as problem:
        if is_from_signal(problem):
            raise
        raised.append(as_failure(problem))
        raise raised[-1] from problem
    except BaseException as problem:
        raised.append(problem)
        raise


def _packed_result(step: Step[..., Any], operation: str, answer: object) -> bytes:
    packed = step.signature.result.pack(answer)
    if len(packed) > LARGEST:
        raise EncodeError(f"the result of {operation} takes {len(packed):,} bytes, at most {LARGEST:,} are allowed")
    return packed
