"""A ledger of what steps did, kept outside of the store that is being tested."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

if TYPE_CHECKING:
    from standfast.workflows.steps import CurrentStep


class Execution(Struct, frozen=True):
    """One attempt of one step, in one of the processes that an environment has had.

    Attributes:
        run: The run.
        step: The step in it.
        attempt: 1, or more after it raised.
        process: 1 for the first process, 2 for the one after the first crash.
    """

    run: str
    step: str
    attempt: int
    process: int


@final
class Effects:
    """How often each step of each run was executed.

        async with WorkflowEnvironment(workflows=[order]) as env:
            run = await env.start(order, "A-1")
            await env.result(run)
            assert env.effects.count(run, "charge") == 1

    It lies outside of the store, and crashes do not reach it.
    """

    __slots__ = ("_counts", "executions")

    def __init__(self) -> None:
        self.executions: Final[list[Execution]] = []
        self._counts: Final[Counter[tuple[str, str]]] = Counter()

    def __len__(self) -> int:
        return len(self.executions)

    def began(self, step: CurrentStep, process: int) -> None:
        """Count an attempt."""
        self.executions.append(Execution(step.run_id, step.step_id, step.attempt, process))
        self._counts[step.run_id, step.step_id] += 1

    def count(self, run: object, step: str) -> int:
        """Return how often a step of a run was executed, attempts after a failure included.

        Args:
            run: The run, or its id.
            step: The step's id: ``charge``, ``charge#2``, ``g1.0/charge`` in a branch.
        """
        return self._counts[getattr(run, "id", str(run)), step]

    def of(self, run: object) -> dict[str, int]:
        """Return all steps of a run that were executed, and how often."""
        wanted = getattr(run, "id", str(run))
        return {step: count for (run_id, step), count in self._counts.items() if run_id == wanted}

    def attempts(self) -> Counter[tuple[str, str, int]]:
        """Return how often each attempt of each step of each run was executed."""
        return Counter((each.run, each.step, each.attempt) for each in self.executions)
