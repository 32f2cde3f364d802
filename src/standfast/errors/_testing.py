"""Errors of the test kit."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class SimulationError(StandfastError):
    """A simulation could not go on. Its notes say which seed repeats it."""


class NotSimulatedError(SimulationError, NotImplementedError):
    """Simulated code asked for something real: a socket, a pipe, a process, a signal.

    Replace that part by a fake in the test, or test it on a real event loop.
    """

    what: str
    template = "{what} would reach outside of the simulation; replace it by a fake, or test this part on a real loop"


class InvalidFaultsError(SimulationError, ValueError):
    """Faults were asked for that cannot be drawn: a chance below 0 or above 1, a negative delay. Fix the numbers."""

    problem: str
    template = "{problem}"


class DeadlockError(SimulationError):
    """Nothing is ready, no timer is set, and the simulated program has not ended: it never will.

    ``waiting`` says of each unfinished task where it waits.
    """

    waiting: tuple[str, ...]

    def _text(self) -> str:
        return "nothing is ready and no timer is set, but these tasks wait:\n" + "\n".join(
            f"  {task}" for task in self.waiting
        )


class LivelockError(SimulationError):
    """The simulated program took more steps than it was allowed to. It loops, or needs a higher ``step_limit``.

    ``waiting`` says of each unfinished task where it was.
    """

    steps: int
    waiting: tuple[str, ...]

    def _text(self) -> str:
        return f"no end after {self.steps:,} steps; unfinished:\n" + "\n".join(f"  {task}" for task in self.waiting)


class NotLinearizableError(StandfastError, AssertionError):
    """A recorded history cannot be explained by any order of its operations: the store broke its contract.

    ``explained`` is the longest run of operations that still made sense, ``stuck`` what could not come next.
    """

    explained: tuple[str, ...]
    stuck: tuple[str, ...]

    def _text(self) -> str:
        before = "\n".join(f"  {operation}" for operation in self.explained[-10:]) or "  (nothing)"
        after = "\n".join(f"  {operation}" for operation in self.stuck)
        return f"no order explains the history. After\n{before}\nnone of these can come next:\n{after}"


class HistoryTooLargeError(SimulationError):
    """The checker gave up before it found an order or ruled all out. Check fewer clients or fewer operations a key."""

    operations: int
    visited: int
    template = (
        "{visited:,} states of {operations:,} operations were tried without a verdict; record fewer clients a key"
    )


class RunStuckError(SimulationError):
    """A run in a test does not go on by itself, however much time passes.

    ``waits_for`` says what it waits for: send that signal, set that event, or register the workflow that is missing.
    """

    run_id: str
    status: str
    waits_for: str

    def _text(self) -> str:
        about = self.waits_for or "nothing that is known"
        return f"the run {self.run_id!r} is {self.status} and never goes on by itself: it waits for {about}"


class RunDivergedError(StandfastError, AssertionError):
    """A run that was disturbed did not do the same as one that was not.

    ``disturbance`` says what was done to it, ``difference`` what came out differently. Look for code in the workflow
    whose outcome depends on something that is not recorded, and for steps that cannot be run twice.
    """

    workflow: str
    disturbance: str
    difference: str
    template = "{workflow}, {disturbance}: {difference}"
