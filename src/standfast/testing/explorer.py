"""An exhaustive search through everything that can happen.

Give it a first state, a function that lists every step out of a state, and the properties of a step. It takes every
step from every state it reaches, breadth first, so what it finds wrong it finds by a shortest way:

    found = explore(World(), steps, {"never negative": lambda before, step, after: after.total >= 0})
    assert found.violation is None, found

States must be hashable and equal when they are the same; frozen values are. It suits pure functions with few actors
and small numbers: a bug that needs three actors and five steps is found there, and not by luck.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

S = TypeVar("S", bound="Hashable")
T = TypeVar("T")

MOST_STATES: Final = 1_000_000
"""How many states are looked at unless told otherwise."""


class Violation(Struct, frozen=True):
    """A step that breaks a property, and the steps that led there, each as text."""

    property: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.property!r} is broken after: {'; '.join(self.path)}"


class Exploration(Struct, frozen=True):
    """What a search came to.

    Attributes:
        states: How many different states were reached.
        steps: How many steps were taken and checked.
        complete: Whether every reachable state was looked at.
        violation: The first step that broke a property, by a shortest way.
    """

    states: int
    steps: int
    complete: bool
    violation: Violation | None = None

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.steps:,} steps, {'complete' if self.complete else 'not complete'}"
        return f"{size}: {self.violation or 'all properties hold'}"


class _Way(Struct, Generic[S, T], frozen=True):
    """How a state was reached first."""

    before: S
    step: T


def _as_it_is(state: S) -> S:
    return state


def explore(
    start: S,
    steps: Callable[[S], Iterable[tuple[T, S]]],
    properties: Mapping[str, Callable[[S, T, S], bool]],
    *,
    canonical: Callable[[S], S] = _as_it_is,
    most_states: int = MOST_STATES,
) -> Exploration:
    """Take every step from every state that can be reached, and stop at the first that breaks a property.

    Args:
        start: The first state.
        steps: Every step out of a state, each with the state that it leads to.
        properties: What each step must keep, by name: a function of the state before, the step, and the state after.
        canonical: Which of all states that behave alike stands for them, such as the one whose clock is at zero.
            Without it, what only counts up makes endlessly many.
        most_states: Stop when that many states were reached; the answer then says that it is not complete.
    """
    first = canonical(start)
    ways: dict[S, _Way[S, T] | None] = {first: None}
    ahead, taken = deque([first]), 0
    while ahead:
        state = ahead.popleft()
        for step, after in steps(state):
            taken += 1
            for name, holds in properties.items():
                if not holds(state, step, after):
                    violation = Violation(name, (*_path(ways, state), str(step)))
                    return Exploration(len(ways), taken, complete=False, violation=violation)
            if (reached := canonical(after)) not in ways:
                if len(ways) >= most_states:
                    return Exploration(len(ways), taken, complete=False)
                ways[reached] = _Way(state, step)
                ahead.append(reached)
    return Exploration(len(ways), taken, complete=True)


def _path(ways: Mapping[S, _Way[S, T] | None], state: S) -> list[str]:
    path: list[str] = []
    while (way := ways[state]) is not None:
        path.append(str(way.step))
        state = way.before
    return path[::-1]
