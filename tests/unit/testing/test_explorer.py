"""The explorer reaches everything, and finds what is wrong by a shortest way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.testing import explore

if TYPE_CHECKING:
    from collections.abc import Iterator


def moves(state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Step along either side of a square of five by five."""
    x, y = state
    if x < 4:
        yield "right", (x + 1, y)
    if y < 4:
        yield "up", (x, y + 1)


def test_every_state_is_reached_once() -> None:
    """All ways lead to the same 25 places, by 40 different steps."""
    found = explore((0, 0), moves, {})
    assert (found.states, found.steps, found.complete) == (25, 40, True)
    assert str(found) == "25 states, 40 steps, complete: all properties hold"


def test_a_broken_property_is_shown_by_a_shortest_way() -> None:
    """The path has no step too many, and the search stops there."""
    found = explore((0, 0), moves, {"stay low": lambda _before, _step, after: sum(after) < 2})
    assert found.violation is not None
    assert (found.violation.property, len(found.violation.path), found.complete) == ("stay low", 2, False)
    assert "'stay low' is broken after: right; right" in str(found)


def test_a_property_sees_the_step_and_both_sides() -> None:
    """What must hold of a step may depend on where it came from and what was done."""
    found = explore((0, 0), moves, {"up is up": lambda a, step, b: (step == "up") == (b[1] > a[1])})
    assert found.violation is None


def test_states_that_behave_alike_are_looked_at_once() -> None:
    """Without a canonical form, what only counts up never ends."""

    def count(state: int) -> Iterator[tuple[str, int]]:
        yield "tick", state + 1

    assert explore(0, count, {}, canonical=lambda n: n % 3).states == 3
    endless = explore(0, count, {}, most_states=10)
    assert (endless.states, endless.complete) == (10, False)
