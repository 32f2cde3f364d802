"""Checking histories: is there an order of the operations that explains every answer?

A history is *linearizable* if each operation can be thought to have happened at one moment between its call and its
return, so that the answers are those of a single thread doing one operation after the other. An operation whose
outcome is unknown may have happened at any moment after its call, or not at all.

The search is the one by Wing and Gong with Lowe's cache: it tries the operations that could come next, and never
visits the same set of operations with the same state twice. It knows nothing of stores: what the operations mean is
a :class:`Specification`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, final

from msgspec import Struct

from standfast.errors import HistoryTooLargeError, NotLinearizableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
        HistoryTooLargeError: The search was given up after ``visit_limit`` states.
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
        raise self._refutation()

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
                    raise HistoryTooLargeError(len(self._operations), len(self._visited))
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

    def _refutation(self) -> NotLinearizableError:
        done = self._deepest[-1].done if self._deepest else 0
        stuck = tuple(str(self._operations[index]) for index in self._candidates(done))
        return NotLinearizableError(tuple(map(str, self._order(self._deepest))), stuck)


def _first_left(done: int) -> int:
    """Return the place of the first operation that is not done: the number of trailing ones."""
    return (~done & (done + 1)).bit_length() - 1
