"""Histories of a store: recorded from clients, and checked for linearizability against a model of the store."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar, final

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import (
    NotLinearizableError,
    OutcomeUnknownError,
    SimulationError,
    StandfastError,
    UnsuitableStoreError,
)
from standfast.keys import RecordKey
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.stores.group_commit import verdict_of
from standfast.stores.protocol import (
    ABSENT,
    MAX_VERSION,
    Change,
    Check,
    Commit,
    Conflict,
    Decided,
    Decision,
    Put,
    Record,
    Snapshot,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from standfast.stores.protocol import Alternative, Capabilities, Choice, Store, Wake, Watch


# --- checking histories: is there an order of the operations that explains every answer? ---------------------------
#
# A history is *linearizable* if each operation can be thought to have happened at one moment between its call and its
# return, so that the answers are those of a single thread doing one operation after the other. An operation whose
# outcome is unknown may have happened at any moment after its call, or not at all.
#
# The search is the one by Wing and Gong with Lowe's cache: it tries the operations that could come next, and never
# visits the same set of operations with the same state twice. It knows nothing of stores: what the operations mean is
# a :class:`Specification`.

CallT = TypeVar("CallT")
AnswerT = TypeVar("AnswerT")
S = TypeVar("S")

VISIT_LIMIT: Final = 1_000_000


class Operation(Struct, Generic[CallT, AnswerT], frozen=True):
    """A call by a client and what came of it.

    ``called_at`` and ``returned_at`` order the events of a history; only which came first matters. An operation whose
    outcome is unknown has no ``returned_at`` and no answer.
    """

    client: str
    call: CallT
    called_at: int
    returned_at: int | None
    answer: AnswerT | None

    def __str__(self) -> str:
        if self.returned_at is None:
            return f"{self.client} [{self.called_at} ... ?] {self.call} -> unknown"
        return f"{self.client} [{self.called_at} ... {self.returned_at}] {self.call} -> {self.answer}"


class Specification(Protocol[S]):
    """What the operations of a history mean, one at a time. States are hashable and never changed."""

    @property
    def initial(self) -> S:
        """The state before the first operation."""
        ...

    def after(self, state: S, operation: Operation[Any, Any]) -> Iterable[S]:
        """Return the states that ``operation`` can leave behind; none if it cannot have been answered like that.

        Of an operation with an unknown outcome: the states that it can leave if it did happen.
        """
        ...


def linearize(
    operations: Sequence[Operation[Any, Any]], specification: Specification[Any], *, visit_limit: int = VISIT_LIMIT
) -> list[Operation[Any, Any]]:
    """Return an order of ``operations`` that explains every answer.

    Operations with an unknown outcome that need not have happened are left out.

    Raises:
        NotLinearizableError: There is no such order.
        SimulationError: The search was given up after ``visit_limit`` states.
    """
    return _Search(operations, specification, visit_limit).run()


@final
class _Branch:
    """A point of the search: what has happened so far, and what is still to be tried from here."""

    __slots__ = ("done", "last", "options", "state")

    def __init__(self, done: int, state: object, last: int | None, options: Iterator[tuple[int, object]]) -> None:
        self.done, self.state, self.last, self.options = done, state, last, options


@final
class _Search:
    """A depth-first search. Sets of operations are bits of an integer, by their place in the order of the calls."""

    def __init__(
        self, operations: Sequence[Operation[Any, Any]], specification: Specification[Any], visit_limit: int
    ) -> None:
        self._operations: Final = sorted(operations, key=lambda operation: operation.called_at)
        self._specification: Final = specification
        self._visit_limit: Final = visit_limit
        self._answered: Final = sum(1 << i for i, each in enumerate(self._operations) if each.returned_at is not None)
        self._visited: Final[set[int]] = set()
        self._deepest: list[_Branch] = []

    def run(self) -> list[Operation[Any, Any]]:
        path = [self._branch(0, self._specification.initial, None)]
        while path:
            if path[-1].done & self._answered == self._answered:
                return self._order(path)
            branch = self._next_from(path[-1])
            if branch is None:
                path.pop()
                continue
            path.append(branch)
            if len(path) > len(self._deepest):
                self._deepest = path.copy()
        done = self._deepest[-1].done if self._deepest else 0
        stuck = tuple(str(self._operations[index]) for index in self._candidates(done))
        raise NotLinearizableError(tuple(map(str, self._order(self._deepest))), stuck)

    def _branch(self, done: int, state: object, last: int | None) -> _Branch:
        return _Branch(done, state, last, self._options(done, state))

    def _next_from(self, branch: _Branch) -> _Branch | None:
        for index, state in branch.options:
            done = branch.done | 1 << index
            # The hash stands for the state: it is small, and two states with one hash are not met in practice.
            visit = hash((done, state))
            if visit not in self._visited:
                self._visited.add(visit)
                if len(self._visited) > self._visit_limit:
                    raise SimulationError(
                        f"{len(self._visited):,} states of {len(self._operations):,} operations gave no verdict;"
                        " record fewer clients a key"
                    )
                return self._branch(done, state, index)
        return None

    def _options(self, done: int, state: object) -> Iterator[tuple[int, object]]:
        for index in self._candidates(done):
            for following in self._specification.after(state, self._operations[index]):
                yield index, following

    def _candidates(self, done: int) -> list[int]:
        """Return the operations that could come next: those called before any other that is left has returned.

        Those with an unknown outcome come last, since they need not be part of the order at all.
        """
        known: list[int] = []
        unknown: list[int] = []
        first_return: float = float("inf")
        for index in range(_first_left(done), len(self._operations)):
            operation = self._operations[index]
            if operation.called_at > first_return:
                break
            if done >> index & 1:
                continue
            if operation.returned_at is None:
                unknown.append(index)
            else:
                known.append(index)
                first_return = min(first_return, operation.returned_at)
        return known + unknown

    def _order(self, path: list[_Branch]) -> list[Operation[Any, Any]]:
        return [self._operations[branch.last] for branch in path if branch.last is not None]


def _first_left(done: int) -> int:
    """Return the place of the first operation that is not done: the number of trailing ones."""
    return (~done & (done + 1)).bit_length() - 1


# --- recording what clients ask of a store and what they are answered, and checking it -----------------------------

T = TypeVar("T")


class Read(Struct, frozen=True):
    """A read of these keys."""

    keys: tuple[RecordKey, ...]


StoreCall: TypeAlias = Read | CommitRider | UpdateRider
"""What a client asked of a store."""

Answer: TypeAlias = Snapshot | Verdict | Exception
"""What it was answered, or what its ``decide`` raised."""

StoreOperation: TypeAlias = Operation[StoreCall, Answer]


@final
class _Open:
    """A call that has not been answered, or never will be."""

    __slots__ = ("call", "called_at", "client")

    def __init__(self, client: str, call: StoreCall, called_at: int) -> None:
        self.client, self.call, self.called_at = client, call, called_at

    def closed(self, returned_at: int | None, answer: Answer | None) -> StoreOperation:
        return Operation(self.client, self.call, self.called_at, returned_at, answer)


@final
class History:
    """What happened, in the order it happened: the calls of several clients and their answers."""

    def __init__(self) -> None:
        self._ticks: Final = itertools.count(1)
        self._open: Final[dict[int, _Open]] = {}
        self._done: Final[list[StoreOperation]] = []

    def begin(self, client: str, call: StoreCall) -> int:
        """Note a call; the number that is returned stands for it."""
        called_at = next(self._ticks)
        self._open[called_at] = _Open(client, call, called_at)
        return called_at

    def answer(self, number: int, answer: Answer) -> None:
        """Note the answer to a call."""
        self._done.append(self._open.pop(number).closed(next(self._ticks), answer))

    def forget(self, number: int) -> None:
        """Note that a call certainly had no effect and told its caller nothing."""
        del self._open[number]

    @property
    def operations(self) -> list[StoreOperation]:
        """All operations; those without an answer so far have an unknown outcome."""
        return [*self._done, *(each.closed(None, None) for each in self._open.values())]


@final
class RecordingStore:
    """A store that writes down what it is asked and what it answers, for one client.

    Give each client its own, over one store or over several handles on the same data, all with one history:

        history = History()
        clients = [RecordingStore(store, history, f"client {n}") for n in range(5)]
        ...
        check_store_history(history.operations)

    Errors that say "nothing was written" leave no trace; an :class:`~standfast.errors.OutcomeUnknownError` leaves an
    operation with an unknown outcome, until :meth:`settle` finds it out. Scans are passed on but not recorded.
    """

    def __init__(self, store: Store, history: History, client: str) -> None:
        self._store, self._history, self._client = store, history, client
        self._unsettled: Final[dict[str, int]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the store underneath can do, without alternatives: the model knows no ranges."""
        return structs.replace(self._store.capabilities, alternatives=False)

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read, and write it down."""
        return await self._recorded(Read(keys), self._store.read(*keys))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Scan; pages are not snapshots, so there is nothing to check them against."""
        return await self._store.scan(start, end, limit=limit, reverse=reverse)

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Commit, and write it down."""
        call = CommitRider(changes, after, before, tuple(wake))
        return await self._recorded(call, self._store.commit(*changes, after=after, before=before, wake=wake))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Update, and write it down."""
        return await self._recorded(UpdateRider(tuple(keys), decide), self._store.update(keys, decide))

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Refuse: there is no model to check the answer against."""
        del alternatives
        raise UnsuitableStoreError(self.capabilities.backend, "alternatives are not recorded")

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Watch; hints prove nothing, so there is nothing to check."""
        return self._store.watch(*prefixes)

    async def settle(self, attempt: str) -> Verdict | None:
        """Settle an attempt, and write down what became of it."""
        verdict = await self._store.settle(attempt)
        number = self._unsettled.pop(attempt, None)
        if number is not None:
            self._close(number, verdict)
        return verdict

    async def another(self) -> RecordingStore:
        """Open another handle, which writes into the same history for the same client."""
        return RecordingStore(await self._store.another(), self._history, self._client)

    def liveness_token(self) -> str:
        """Return the liveness token of the store underneath."""
        return self._store.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Tell what the store underneath tells."""
        return self._store.is_dead(token)

    async def aclose(self) -> None:
        """Close the store underneath."""
        await self._store.aclose()

    async def _recorded(self, call: StoreCall, answering: Awaitable[T]) -> T:
        number = self._history.begin(self._client, call)
        try:
            answer = await answering
        except OutcomeUnknownError as unknown:
            self._unsettled[unknown.attempt] = number
            raise
        except asyncio.CancelledError as cancelled:
            self._close(number, verdict_of(cancelled))
            raise
        except Exception as problem:
            self._close(number, None if isinstance(problem, StandfastError) else problem)
            raise
        self._history.answer(number, answer)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- T is one of them
        return answer

    def _close(self, number: int, answer: Answer | None) -> None:
        if isinstance(answer, OutcomeUnknownError):
            self._unsettled[answer.attempt] = number
        elif answer is None or isinstance(answer, StandfastError):
            self._history.forget(number)
        else:
            self._history.answer(number, answer)


# --- what a store should answer, as a pure model: no time, no I/O, no concurrency ----------------------------------
#
# A store may choose two things: the instant of an answer and the versions of what it puts. The model takes both from
# the store's own answer (``like``), refuses versions that do not grow, and predicts everything else. If the answer is
# not equal to the prediction, the store is wrong (or the model).


class Cell(Struct, frozen=True):
    """A key that has been used: its record, expired or not, and the highest version that it has had."""

    record: Record | None
    high: int


NEVER_USED: Final = Cell(None, ABSENT)


@final
class StoreModel:
    """The records that a store should hold. Immutable: each change returns another model."""

    __slots__ = ("_cells",)

    def __init__(self, cells: Mapping[RecordKey, Cell] | None = None) -> None:
        self._cells: Final[Mapping[RecordKey, Cell]] = {} if cells is None else cells

    def __eq__(self, other: object) -> bool:
        return type(other) is StoreModel and self._cells == other._cells

    def __hash__(self) -> int:
        return hash(frozenset(self._cells.items()))

    def record(self, key: RecordKey, at: Instant) -> Record | None:
        """Return the record that is present at ``key`` at ``at``."""
        record = self._cell(key).record
        if record is None or (record.expires_at is not None and record.expires_at <= at):
            return None
        return record

    def _cell(self, key: RecordKey) -> Cell:
        return self._cells.get(key, NEVER_USED)

    def expiries(self, keys: Sequence[RecordKey]) -> set[Instant]:
        """Return the instants at which records at ``keys`` expire."""
        records = [self._cell(key).record for key in keys]
        return {record.expires_at for record in records if record is not None and record.expires_at is not None}

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[RecordKey], *, at: Instant) -> Snapshot:
        """Predict a read."""
        return Snapshot(at, {key: record for key in keys if (record := self.record(key, at)) is not None})

    def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False, at: Instant) -> Snapshot:
        """Predict a page of a scan."""
        inside = sorted((key for key in self._cells if start <= key < end), reverse=reverse)
        present = [key for key in inside if self.record(key, at) is not None]
        snapshot = self.read(present[:limit], at=at)
        if len(present) <= limit:
            return snapshot
        last = present[limit - 1]
        return Snapshot(at, snapshot.records, last if reverse else last.successor())

    # --- writing -----------------------------------------------------------------------------------------------

    def commit(
        self,
        changes: Sequence[Change],
        *,
        like: Commit | Conflict,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> tuple[StoreModel, Commit | Conflict]:
        """Predict a commit that was answered ``like`` this, and the model after it."""
        at = like.at
        current = {change.key: self.record(change.key, at) for change in changes}
        lost = {
            change.key: current[change.key] for change in changes if _version(current[change.key]) != change.expected
        }
        if lost or (after is not None and at < after) or (before is not None and at >= before):
            return self, Conflict(at, lost)
        versions = self.versions(changes, like.versions if isinstance(like, Commit) else {})
        return self.written(changes, versions), Commit(at, versions)

    def update(
        self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[Any]], *, like: Decided[Any]
    ) -> tuple[StoreModel, Decided[Any]]:
        """Predict an update that was answered ``like`` this, and the model after it."""
        decision = decide(self.read(keys, at=like.at))
        versions = self.versions(decision.changes, like.versions)
        return self.written(decision.changes, versions), Decided(decision.answer, like.at, versions)

    def versions(self, changes: Sequence[Change], given: Mapping[RecordKey, int]) -> dict[RecordKey, int]:
        """Return the version of each key that is put: the one that was ``given``, if a store may choose it."""
        return {put.key: self._grown(put.key, given.get(put.key, ABSENT)) for put in changes if isinstance(put, Put)}

    def _grown(self, key: RecordKey, given: int) -> int:
        high = self._cell(key).high
        return given if high < given <= MAX_VERSION else high + 1

    def written(self, changes: Sequence[Change], versions: Mapping[RecordKey, int]) -> StoreModel:
        """Return the model after ``changes``, whatever they expect."""
        cells = dict(self._cells)
        for change in changes:
            if isinstance(change, Check):
                continue
            high = self._cell(change.key).high
            if isinstance(change, Put):
                high = max(high, versions[change.key])
                record = Record(change.key, change.value, versions[change.key], change.expires_at)
            else:
                record = None
            cells[change.key] = Cell(record, high)
        return StoreModel(cells)


def _version(record: Record | None) -> int:
    return ABSENT if record is None else record.version


# --- what a store history means: the store contract as a specification for the linearizability checker -------------


def check_store_history(operations: Sequence[StoreOperation], *, visit_limit: int = VISIT_LIMIT) -> None:
    """Raise unless one order of ``operations``, on a store that was empty before, explains every answer.

    Operations on keys that never meet in one operation are checked apart, which is as strict and much quicker. With
    more than about ten clients a key the search may become too large.

    Raises:
        NotLinearizableError: No order explains the history.
        SimulationError: The search was given up after ``visit_limit`` states.
    """
    for group in by_shared_keys(operations):
        linearize(group, StoreSpecification(group), visit_limit=visit_limit)


class Moment(Struct, frozen=True):
    """A state of the search: what the store holds, and the latest instant of an answer so far."""

    model: StoreModel
    at: Instant


@final
class StoreSpecification:
    """What the operations of one history mean, on a store that starts empty."""

    def __init__(self, operations: Sequence[StoreOperation]) -> None:
        self._seen: Final = _versions_seen(operations)

    @property
    def initial(self) -> Moment:
        """An empty store."""
        return Moment(StoreModel(), Instant(0))

    def after(self, state: Moment, operation: StoreOperation) -> Iterable[Moment]:
        """Return what ``operation`` can leave behind."""
        if operation.returned_at is None:
            return self._after_unknown(state, operation.call)
        return _after_answer(state, operation.call, operation.answer)

    def _after_unknown(self, moment: Moment, call: StoreCall) -> Iterator[Moment]:
        """Let a commit land whose answer is unknown, at any instant and with any version that may matter."""
        if isinstance(call, Read):
            return
        for at in _instants(moment, call):
            changes = _landing(moment.model, call, at)
            for versions in self._possible_versions(moment.model, changes):
                yield Moment(moment.model.written(changes, versions), at)

    def _possible_versions(self, model: StoreModel, changes: Sequence[Change]) -> Iterator[dict[RecordKey, int]]:
        puts = [change for change in changes if isinstance(change, Put)]
        unseen = model.versions(changes, {})
        choices = [sorted({*self._seen.get((put.key, put.value), ()), unseen[put.key]}) for put in puts]
        for choice in itertools.product(*choices):
            given = dict(zip([put.key for put in puts], choice, strict=True))
            if model.versions(changes, given) == given:
                yield given


def _after_answer(moment: Moment, call: StoreCall, answer: Answer | None) -> list[Moment]:
    if answer is None or isinstance(answer, Exception):  # an update whose own decision failed has changed nothing
        return [moment]
    model, expected = _predicted(moment.model, call, answer)
    return [Moment(model, max(moment.at, answer.at))] if expected == answer else []


def _predicted(model: StoreModel, call: StoreCall, answer: Snapshot | Verdict) -> tuple[StoreModel, Answer | None]:
    """Predict the model after a call and its answer; None if it cannot have been answered like that at all."""
    if isinstance(call, Read):
        return model, model.read(call.keys, at=answer.at)
    if isinstance(call, CommitRider) and isinstance(answer, Commit | Conflict):
        return model.commit(call.changes, like=answer, after=call.after, before=call.before)
    if isinstance(call, UpdateRider) and isinstance(answer, Decided):
        return model.update(call.keys, call.decide, like=answer)
    return model, None


def _instants(moment: Moment, call: CommitRider | UpdateRider) -> list[Instant]:
    """Return the instants at which a late landing may act differently: now, and when records involved expire."""
    after, before = (call.after, call.before) if isinstance(call, CommitRider) else (None, None)
    earliest = max(moment.at, after or moment.at)
    later = {instant for instant in moment.model.expiries(keys_of(call)) if instant > earliest}
    return sorted(instant for instant in {earliest, *later} if before is None or instant < before)


def _landing(model: StoreModel, call: CommitRider | UpdateRider, at: Instant) -> tuple[Change, ...]:
    """Return the changes that the call makes if it lands now; none if it loses."""
    if isinstance(call, UpdateRider):
        try:
            return call.decide(model.read(call.keys, at=at)).changes
        except Exception:  # noqa: BLE001 -- whatever the decision raises, it then changes nothing
            return ()
    _, verdict = model.commit(call.changes, like=Commit(at, {}))
    return call.changes if isinstance(verdict, Commit) else ()


def keys_of(call: StoreCall) -> list[RecordKey]:
    """Return the keys that a call is about."""
    return [change.key for change in call.changes] if isinstance(call, CommitRider) else list(call.keys)


def _versions_seen(operations: Sequence[StoreOperation]) -> dict[tuple[RecordKey, bytes], set[int]]:
    """Return under which versions each value was ever shown, apart from those that an answered put is known to have."""
    seen: dict[tuple[RecordKey, bytes], set[int]] = {}
    owned = {pair for operation in operations for pair in _versions_given(operation.answer)}
    for operation in operations:
        for record in _records_in(operation.answer):
            if (record.key, record.version) not in owned:
                seen.setdefault((record.key, record.value), set()).add(record.version)
    return seen


def _versions_given(answer: object) -> Iterable[tuple[RecordKey, int]]:
    return answer.versions.items() if isinstance(answer, Commit | Decided) else ()


def _records_in(answer: object) -> list[Record]:
    if isinstance(answer, Snapshot):
        return list(answer.records.values())
    if isinstance(answer, Conflict):
        return [record for record in answer.current.values() if record is not None]
    return []


def by_shared_keys(operations: Sequence[StoreOperation]) -> list[list[StoreOperation]]:
    """Split a history into groups whose keys never meet in one operation."""
    leaders: dict[RecordKey, RecordKey] = {}
    for operation in operations:
        first, *others = keys_of(operation.call)
        for key in others:
            leaders[_leader(leaders, key)] = _leader(leaders, first)
    groups: dict[RecordKey, list[StoreOperation]] = {}
    for operation in operations:
        groups.setdefault(_leader(leaders, keys_of(operation.call)[0]), []).append(operation)
    return list(groups.values())


def _leader(leaders: dict[RecordKey, RecordKey], key: RecordKey) -> RecordKey:
    while (above := leaders.get(key, key)) != key:
        key = above
    return key
