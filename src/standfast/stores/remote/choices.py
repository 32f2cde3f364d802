"""Batches in which a server decides between alternatives: what is asked of it, and what each rider is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from standfast.stores.alternatives import choose, done, keys_in, settled
from standfast.stores.backend import Applied, ChoiceRider, CommitRider, Deferred
from standfast.stores.protocol import (
    ABSENT,
    Alternative,
    Append,
    Choice,
    Commit,
    Conflict,
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
    from standfast.stores.protocol import Wake
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
        self.choices: Final = tuple([_alternatives(rider) for rider in riders])

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
        return done(answer.index, alternative, answer.at, answer.present.get, lambda *_: firsts, lambda: version)
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
