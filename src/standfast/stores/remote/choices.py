"""Batches in which a server decides between alternatives: what is asked of it, and what each rider is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.stores.alternatives import choose, done, keys_in, settled
from standfast.stores.backend import Applied, ChoiceRider, CommitRider, Deferred
from standfast.stores.protocol import Alternative, Choice, Commit, Conflict
from standfast.stores.remote.server import ChoiceWritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.alternatives import ChoiceEffect
    from standfast.stores.backend import Outcome, Rider
    from standfast.stores.protocol import Wake
    from standfast.stores.remote.server import ChoiceRefused

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
        return done(answer.index, alternative, answer.at, answer.present.get, lambda _: moved, lambda: version)
    effect = choose(ChoiceRider(choice), answer.at, answer.records.get, answer.firsts.get, lambda: 0)
    return effect if isinstance(effect.answer, Conflict) else None
