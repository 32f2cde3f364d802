"""Errors of the test kit."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class SimulationError(StandfastError):
    """A simulation, or the check of its history, could not continue. Its notes say which seed repeats it.

    A program that waits for ever or never ends needs mending, or a higher ``step_limit``.

    Attributes:
        waiting: Where each unfinished task waits.
    """

    problem: str
    waiting: tuple[str, ...] = ()

    def _text(self) -> str:
        return "\n".join(
            [f"{self.problem}:" if self.waiting else self.problem, *(f"  {task}" for task in self.waiting)]
        )


class NotSimulatedError(StandfastError, NotImplementedError):
    """Simulated code asked for something real: a socket, a pipe, a process, a signal.

    Replace that part by a fake in the test, or test it on a real event loop.
    """

    what: str
    template = "{what} would reach outside of the simulation; replace it by a fake, or test this part on a real loop"


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


class RunStuckError(StandfastError):
    """A run in a test does not continue by itself, however much time passes.

    ``waits_for`` says what it waits for: send that signal, set that event, or register the workflow that is missing.
    """

    run_id: str
    status: str
    waits_for: str

    def _text(self) -> str:
        about = self.waits_for or "nothing that is known"
        return f"the run {self.run_id!r} is {self.status} and never continues: it waits for {about}"


class RunDivergedError(StandfastError, AssertionError):
    """A run that was disturbed did not do the same as one that was not.

    ``disturbance`` says what was done to it, ``difference`` what came out differently. Look for code in the workflow
    whose outcome depends on something that is not recorded, and for steps that cannot be run twice.
    """

    workflow: str
    disturbance: str
    difference: str
    template = "{workflow}, {disturbance}: {difference}"
