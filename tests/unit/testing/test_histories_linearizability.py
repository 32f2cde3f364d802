"""The checker, on histories whose verdict is known."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from standfast.errors import NotLinearizableError, SimulationError
from standfast.testing import Operation, linearize

if TYPE_CHECKING:
    from collections.abc import Iterable

Call = tuple[str, int] | tuple[str, int, int] | tuple[str]
Answer = int | bool
RegisterOperation = Operation[Call, Answer]


class Register:
    """A single number: ("read",), ("write", new), and ("cas", old, new), which answers whether it won."""

    initial = 0

    def after(self, state: int, operation: RegisterOperation) -> Iterable[int]:
        """Return what the operation leaves behind."""
        match operation.call:
            case ("write", new):
                return [new]
            case ("cas", old, new):
                if operation.returned_at is None:
                    return [new] if state == old else []
                return ([new] if state == old else [state]) if operation.answer == (state == old) else []
            case _:
                return [state] if operation.answer in (state, None) else []


def op(client: str, span: str, call: Call, answer: Answer | None = None) -> RegisterOperation:
    """Make an operation from a picture of when it ran: ``"  [--]"``, or ``"  [-?"`` if its outcome is unknown."""
    returned_at = None if span.endswith("?") else span.index("]")
    return Operation(client, call, span.index("["), returned_at, answer)


GOOD = {
    "nothing happened": [],
    "a read after a write sees it": [
        op("a", "[--]", ("write", 1)),
        op("b", "     [--]", ("read",), 1),
    ],
    "a read during a write may see the old": [
        op("a", "[-----]", ("write", 1)),
        op("b", " [--]", ("read",), 0),
    ],
    "a read during a write may see the new": [
        op("a", "[-----]", ("write", 1)),
        op("b", " [--]", ("read",), 1),
    ],
    "two reads during two writes may see either order": [
        op("a", "[---------]", ("write", 1)),
        op("b", "[---------]", ("write", 2)),
        op("c", " [-]", ("read",), 2),
        op("c", "      [-]", ("read",), 1),
    ],
    "one of two racers wins": [
        op("a", "[---]", ("cas", 0, 1), answer=True),
        op("b", " [---]", ("cas", 0, 2), answer=False),
        op("c", "       [-]", ("read",), 1),
    ],
    "a lost reply: it happened": [
        op("a", "[-?", ("write", 1)),
        op("b", "    [-]", ("read",), 1),
    ],
    "a lost reply: it did not happen": [
        op("a", "[-?", ("write", 1)),
        op("b", "    [-]", ("read",), 0),
    ],
    "a lost reply: it happened much later": [
        op("a", "[-?", ("write", 1)),
        op("b", "    [-]", ("read",), 0),
        op("b", "        [-]", ("write", 2)),
        op("b", "            [-]", ("read",), 1),
    ],
    "a crashed racer won": [
        op("a", "[-?", ("cas", 0, 1)),
        op("b", "    [-]", ("cas", 0, 2), answer=False),
        op("b", "        [-]", ("cas", 1, 2), answer=True),
    ],
}

BAD = {
    "a stale read": [
        op("a", "[--]", ("write", 1)),
        op("b", "     [--]", ("read",), 0),
    ],
    "a read of what nobody wrote": [
        op("a", "[--]", ("write", 1)),
        op("b", "[--]", ("read",), 7),
    ],
    "a value that comes back": [
        op("a", "[-----------]", ("write", 1)),
        op("b", " [-]", ("read",), 1),
        op("b", "     [-]", ("read",), 0),
    ],
    "two winners of one race": [
        op("a", "[---]", ("cas", 0, 1), answer=True),
        op("b", " [---]", ("cas", 0, 2), answer=True),
    ],
    "no winner of a race": [
        op("a", "[---]", ("cas", 0, 1), answer=False),
        op("b", " [---]", ("cas", 0, 2), answer=False),
    ],
    "a lost update": [
        op("a", "[---]", ("cas", 0, 1), answer=True),
        op("b", "      [---]", ("cas", 1, 2), answer=True),
        op("c", "            [-]", ("read",), 1),
    ],
    "two observers disagree on the order": [
        op("a", "[---------]", ("write", 1)),
        op("b", "[---------]", ("write", 2)),
        op("c", " [-]", ("read",), 1),
        op("c", "     [-]", ("read",), 2),
        op("d", " [-]", ("read",), 2),
        op("d", "     [-]", ("read",), 1),
        op("e", "            [-]", ("read",), 1),
        op("e", "                [-]", ("read",), 2),
    ],
    "a lost reply that happened twice": [
        op("a", "[-?", ("cas", 0, 1)),
        op("b", "    [-]", ("read",), 1),
        op("b", "        [-]", ("cas", 1, 0), answer=True),
        op("b", "            [-]", ("read",), 1),
        op("b", "                [-]", ("cas", 1, 0), answer=True),
        op("b", "                    [-]", ("read",), 1),
    ],
    "a lost reply seen before it was asked": [
        op("b", "[-]", ("read",), 1),
        op("a", "    [-?", ("write", 1)),
    ],
}


@pytest.mark.parametrize("operations", GOOD.values(), ids=GOOD)
def test_a_good_history_is_explained(operations: list[RegisterOperation]) -> None:
    """A history that an order explains gets that order, with every answered operation in it."""
    order = linearize(operations, Register())
    assert {each for each in operations if each.returned_at is not None} <= set(order)


@pytest.mark.parametrize("operations", BAD.values(), ids=BAD)
def test_a_bad_history_is_refused(operations: list[RegisterOperation]) -> None:
    """A history that no order explains is refused."""
    with pytest.raises(NotLinearizableError):
        linearize(operations, Register())


def test_a_refusal_says_what_made_sense_and_what_did_not() -> None:
    """The error has the operations that could be explained, and those of which none could come next."""
    with pytest.raises(NotLinearizableError) as caught:
        linearize(BAD["a stale read"], Register())
    assert "write" in caught.value.explained[0]
    assert "read" in caught.value.stuck[0]


def concurrent_history(seed: int, *, clients: int, operations: int) -> list[RegisterOperation]:
    """Make a correct history: each operation takes effect at one random moment between its call and its return."""
    choose = random.Random(seed)
    value = 0
    history: list[RegisterOperation] = []
    free_at = [0] * clients
    for moment in range(0, operations * 100, 100):
        client = min(range(clients), key=free_at.__getitem__)
        called_at = free_at[client] + 1
        happens_at = max(moment, called_at)
        returned_at = happens_at + choose.randrange(1, 99 * clients)
        old, new = choose.choice([value, value + 1]), moment + 1
        history.append(Operation(str(client), ("cas", old, new), called_at, returned_at, old == value))
        value = new if old == value else value
        free_at[client] = returned_at
    return history


@pytest.mark.parametrize("clients", [1, 5, 10])
def test_a_long_history_of_several_clients_is_checked_quickly(clients: int, seed: int) -> None:
    """Hundreds of operations by ten clients on one key take a bounded search."""
    linearize(concurrent_history(seed, clients=clients, operations=300), Register(), visit_limit=100_000)


def test_a_small_flaw_in_a_long_history_is_found(seed: int) -> None:
    """One wrong answer among hundreds is enough: a racer that lost says that it won."""
    history = concurrent_history(seed, clients=4, operations=200)
    place = next(i for i in range(100, 200) if not history[i].answer)
    wrong = history[place]
    history[place] = Operation(wrong.client, ("cas", -1, 0), wrong.called_at, wrong.returned_at, answer=True)
    with pytest.raises(NotLinearizableError):
        linearize(history, Register())


def test_a_search_that_grows_too_large_is_given_up() -> None:
    """The checker does not run for ever: it says that it gave up."""
    lost = [op(str(n), "[-?", ("write", n)) for n in range(12)]
    with pytest.raises(SimulationError):
        linearize([*lost, op("z", "     [-]", ("read",), 99)], Register(), visit_limit=1_000)
