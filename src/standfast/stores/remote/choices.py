"""Batches in which a server decides between alternatives: what is asked of it, and what each rider is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

from standfast.stores.alternatives import choose, done, keys_in, settled
from standfast.stores.backend import Applied, ChoiceRider, CommitRider, Deferred
from standfast.stores.protocol import (
    ABSENT,
    Alternative,
    Append,
    Check,
    Choice,
    Commit,
    Conflict,
    Count,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
)
from standfast.stores.remote.server import ChoiceWritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.alternatives import ChoiceEffect
    from standfast.stores.backend import Outcome, Rider
    from standfast.stores.protocol import Record, Wake
    from standfast.stores.remote.server import ChoiceIntent, ChoiceRefused

_DEFERRED: Final = Deferred()


def has_choice(riders: Sequence[Rider]) -> bool:
    """Return True if alternatives are among the riders; then all of them are choices or commits."""
    return ChoiceRider in map(type, riders)


@final
class ChoicePlan:
    """Riders as choices: a commit has one alternative."""

    __slots__ = ("_riders", "choices")

    def __init__(self, riders: Sequence[Rider]) -> None:
        self._riders: Final = riders
        first = riders[0]
        self.choices: Final = (
            (first.alternatives,)  # mostly one is alone
            if type(first) is ChoiceRider and len(riders) == 1
            else tuple([_alternatives(rider) for rider in riders])
        )

    @property
    def keys(self) -> list[RecordKey]:
        """All keys that are named."""
        return [key for choice in self.choices for key in keys_in(choice)]

    @property
    def namespace(self) -> bytes:
        """The first part of all keys, encoded."""
        return ChoiceRider(self.choices[0]).namespace

    def answered(self, answers: Sequence[ChoiceWritten | ChoiceRefused]) -> Applied:
        """Return what each rider is answered, by what the server did."""
        if len(answers) == 1 and type(self._riders[0]) is ChoiceRider:
            effect = _effect(self.choices[0], answers[0])
            if effect is not None:
                return Applied((effect.answer,), tuple(effect.writes), tuple(effect.wakes))
        effects = [_effect(choice, answer) for choice, answer in zip(self.choices, answers, strict=True)]
        return self._applied(effects)

    def applied(self, at: Instant, versions: Sequence[int]) -> Applied:
        """Return what can be said when the answer was lost: of each, which alternative it was, and the version.

        One that wrote nothing rides again.
        """
        effects = [
            settled(choice, index, at, version) if version else None
            for choice, version, index in zip(self.choices, versions[::2], versions[1::2], strict=True)
        ]
        return self._applied(effects)

    def _applied(self, effects: Sequence[ChoiceEffect | None]) -> Applied:
        outcomes: list[Outcome] = []
        changed: list[RecordKey] = []
        wakes: list[Wake] = []
        for rider, effect in zip(self._riders, effects, strict=True):
            if effect is None:
                outcomes.append(_DEFERRED)
                continue
            answer: Outcome = effect.answer
            if type(answer) is Choice and type(rider) is CommitRider:
                answer = Commit(answer.at, answer.versions)
            outcomes.append(answer)
            changed += effect.writes
            wakes += effect.wakes
        return Applied(tuple(outcomes), tuple(changed), tuple(wakes))


def _alternatives(rider: Rider) -> tuple[Alternative, ...]:
    if type(rider) is CommitRider:
        return (Alternative(rider.changes, rider.wake, rider.after, rider.before),)
    assert type(rider) is ChoiceRider  # noqa: S101 -- for the type checker: no others travel with a choice
    return rider.alternatives


def _effect(choice: tuple[Alternative, ...], answer: ChoiceWritten | ChoiceRefused) -> ChoiceEffect | None:
    """Return what a choice came to; None if none held and one does by now."""
    if isinstance(answer, ChoiceWritten):
        moved, version = answer.moved, answer.version
        alternative = choice[answer.index]
        firsts = () if moved is None else (moved,)

        def first_moved(_prefix: RecordKey, _most: int) -> Sequence[Record]:
            return firsts

        return done(answer.index, alternative, answer.at, answer.present.get, first_moved, lambda: version)
    effect = choose(ChoiceRider(choice), answer.at, answer.records.get, answer.below, lambda: 0)
    return effect if isinstance(effect.answer, Conflict) else None


# --- the two choices that mutexes make all the time: a server may have a quicker way for them ----------------------


class CreateOrAppend(NamedTuple):
    """Create a record with a stamp and one without; or else, as the latter is there, append the former."""

    stamped_key: RecordKey
    stamped_value: bytes
    put_key: RecordKey
    put_value: bytes
    prefix: RecordKey
    suffix: bytes


class MoveOrDelete(NamedTuple):
    """Move the first record below a prefix over another one; or else, as there is none, delete that and a third."""

    to_key: RecordKey
    to_version: int
    other_key: RecordKey
    other_version: int
    prefix: RecordKey
    inboxes: RecordKey


class EnterSlot(NamedTuple):
    """In the order of the first three, which are places of alternatives; None: it is not among them.

    Create head, gate and the first of the grants; or, as the gate is there, the first of the grants that is not there;
    or, as the gate is there and that many records below the prefix, append a record.
    """

    begins: int | None
    takes: int
    joins: int | None
    gate_key: RecordKey
    head_key: RecordKey
    head_value: bytes
    grants: list[RecordKey]
    stamped_value: bytes
    prefix: RecordKey
    permits: int
    queue: RecordKey
    suffix: bytes


class LeaveSlot(NamedTuple):
    """Delete the only record below a prefix and two more, unless ``first`` is -1; or move one there; or delete it."""

    first: int
    gate_key: RecordKey
    gate_version: int
    grant_key: RecordKey
    grant_version: int
    head_key: RecordKey
    prefix: RecordKey
    queue: RecordKey
    inboxes: RecordKey


def slot_choice(intent: ChoiceIntent) -> EnterSlot | LeaveSlot | None:
    """Return a choice that is alone, notifies no other handle, and enters or leaves a line with slots."""
    if len(intent.choices) != 1 or any(intent.messages):
        return None
    [choice] = intent.choices
    if any(not each.after is each.before is None for each in choice):
        return None
    kinds = [tuple(map(type, each.changes)) for each in choice]
    if kinds == _LAST_LEAVES or kinds == _LAST_LEAVES[1:]:
        return _leave_slot(*[each.changes for each in choice])
    return _enter_slot(choice, kinds)


_BEGIN: Final = (Put, Put, Stamped)
_TAKE: Final = (Present, Stamped)
_JOIN: Final = (Present, Count, Append)
_LAST_LEAVES: Final[list[tuple[type, ...]]] = [
    (Empty, Count, Delete, Delete, Delete),
    (MoveFirst, Check),
    (Count, Empty, Delete, Check),
]


def _enter_slot(choice: Sequence[Alternative], kinds: Sequence[tuple[type, ...]]) -> EnterSlot | None:
    takes = [place for place, each in enumerate(kinds) if each == _TAKE]
    others = {each: place for place, each in enumerate(kinds) if each != _TAKE}
    if not takes or len(takes) + len(others) != len(kinds) or not others.keys() <= {_BEGIN, _JOIN}:
        return None
    if takes[-1] - takes[0] >= len(takes):
        return None
    begins, joins = others.get(_BEGIN), others.get(_JOIN)
    gate: Any = choice[takes[0]].changes[0]
    stamps: list[Any] = [choice[place].changes[1] for place in takes]
    values = [each.value for each in stamps]
    asked = EnterSlot(
        begins,
        takes[0],
        joins,
        gate.key,
        gate.key,
        b"",
        [each.key for each in stamps],
        values[0],
        gate.key,
        0,
        gate.key,
        b"",
    )
    plain = [*stamps]
    if begins is not None:
        head, made, grant = cast("tuple[Any, ...]", choice[begins].changes)
        plain += [head, made, grant]
        values.append(grant.value)
        if made.key != gate.key or grant.key != asked.grants[0] or made.value != head.value:
            return None
        asked = asked._replace(head_key=head.key, head_value=head.value)
    if joins is not None:
        again, count, append = cast("tuple[Any, ...]", choice[joins].changes)
        values.append(append.value)
        if again.key != gate.key or count.most is not None or not count.least or not append.stamped:
            return None
        asked = asked._replace(prefix=count.prefix, permits=count.least, queue=append.prefix, suffix=append.suffix)
    are_plain = all(each.expected == ABSENT and each.expires_at is None for each in plain)
    are_same = all(each is values[0] for each in values) and all(choice[place].changes[0] == gate for place in takes)
    return asked if are_plain and are_same else None


def _leave_slot(*ways: tuple[Any, ...]) -> LeaveSlot | None:
    """Return what leaves a slot, if all parts of it are about the same records."""
    (move, opened), (other, empty, freed, again) = ways[-2:]
    gate, first = opened.key, -1
    if len(ways) > 2:  # noqa: PLR2004 -- it may be the last one
        none, only, deleted, grant, head = ways[0]
        first, gate = 0, deleted.key
        is_last = none == empty and grant == freed and (only.least, only.most, only.prefix) == (0, 1, other.prefix)
        if not is_last or head.key != opened.key or not head.expected == deleted.expected == opened.expected:
            return None
    is_one = (
        empty.prefix == move.prefix and freed.key == move.to and freed.expected == move.expected and again == opened
    )
    is_below = freed.key.startswith(other.prefix) and (first < 0 or gate < freed.key) and freed.key < opened.key
    if not is_one or not is_below or (other.least, other.most) != (2, None) or not move.expected:
        return None
    return LeaveSlot(
        first, gate, opened.expected, move.to, move.expected, opened.key, other.prefix, move.prefix, move.inboxes
    )


def quick_choice(intent: ChoiceIntent) -> CreateOrAppend | MoveOrDelete | None:
    """Return a choice that is alone, notifies no other handle, and is one of those two; None: it is another one."""
    if len(intent.choices) != 1 or any(intent.messages):
        return None
    [choice] = intent.choices
    if len(choice) != 2:  # noqa: PLR2004 -- one or else another
        return None
    first, second = choice
    if not (first.after is first.before is second.after is second.before is None):
        return None
    kinds = (*map(type, first.changes), *map(type, second.changes))
    if kinds == _MOVE_OR_DELETE:
        return _move_or_delete(*first.changes, *second.changes)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- their types were compared
    if kinds == _CREATE_OR_APPEND and len(first.changes) == len(second.changes):
        return _create_or_append(*first.changes, *second.changes)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- see above
    return None


_CREATE_OR_APPEND: Final = (Put, Stamped, Present, Append)
_MOVE_OR_DELETE: Final = (MoveFirst, Empty, Delete, Delete)


def _create_or_append(put: Put, made: Stamped, present: Present, append: Append) -> CreateOrAppend | None:
    if (
        put.key == present.key
        and made.value == append.value
        and append.stamped
        and put.expected == made.expected == ABSENT
        and put.expires_at is made.expires_at is None
        and made.key < put.key
    ):
        return CreateOrAppend(made.key, made.value, put.key, put.value, append.prefix, append.suffix)
    return None


def _move_or_delete(move: MoveFirst, empty: Empty, other: Delete, gone: Delete) -> MoveOrDelete | None:
    if (
        empty.prefix == move.prefix
        and gone.key == move.to
        and gone.expected == move.expected
        and move.expected
        and other.expected
        and move.to < other.key
    ):
        return MoveOrDelete(move.to, move.expected, other.key, other.expected, move.prefix, move.inboxes)
    return None
