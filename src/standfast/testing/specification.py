"""What a store history means: the store contract as a specification for the linearizability checker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.stores.protocol import Change, Commit, Conflict, Decided, Put, Record, Snapshot
from standfast.testing.history import Read
from standfast.testing.linearizability import VISIT_LIMIT, linearize
from standfast.testing.model import StoreModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Verdict
    from standfast.testing.history import Answer, Call, StoreOperation


def check_store_history(operations: Sequence[StoreOperation], *, visit_limit: int = VISIT_LIMIT) -> None:
    """Raise unless one order of ``operations``, on a store that was empty before, explains every answer.

    Operations on keys that never meet in one operation are checked apart, which is as strict and much quicker. With
    more than about ten clients a key the search may become too large.

    Raises:
        NotLinearizableError: No order explains the history.
        HistoryTooLargeError: The search was given up after ``visit_limit`` states.
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

    def _after_unknown(self, moment: Moment, call: Call) -> Iterator[Moment]:
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


def _after_answer(moment: Moment, call: Call, answer: Answer | None) -> list[Moment]:
    if answer is None or isinstance(answer, Exception):  # an update whose own decision failed has changed nothing
        return [moment]
    model, expected = _predicted(moment.model, call, answer)
    return [Moment(model, max(moment.at, answer.at))] if expected == answer else []


def _predicted(model: StoreModel, call: Call, answer: Snapshot | Verdict) -> tuple[StoreModel, Answer | None]:
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


def keys_of(call: Call) -> list[RecordKey]:
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
