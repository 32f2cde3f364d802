"""What runs of workflows and their workers tell."""

from __future__ import annotations

from typing import ClassVar

from standfast.events._event import Event, Level


class RunEvent(Event, frozen=True, kw_only=True):
    """The root of what runs of workflows tell. ``run`` is the run's id."""

    run: str


class RunMoved(RunEvent, frozen=True, kw_only=True):
    """A run went from one state to another: it was started, claimed, suspended, handed back, or has ended."""

    workflow: str
    status: str
    """How it is now: ``pending``, ``running``, ``suspended``, ``completed`` ..."""
    fence: int = 0
    """The fence with which it is, or was, driven; 0: nobody drives it."""
    waited: float = 0.0
    """How many seconds it was in the state before."""
    about: str = ""
    """What it waits for, or why it ended, in words."""
    key: str = ""
    """What it counts for: the partitions of its limits, and its schedule; empty if it has none."""


class RunLocked(RunEvent, frozen=True, kw_only=True):
    """A run has got a lock through its context, and holds it however long it sleeps."""

    level: ClassVar[Level] = "debug"

    step: str
    key: str
    """The lock's key."""
    fence: int
    """The fence of the lock, not of the run."""
    waited: float
    """How many seconds it stood in line."""


class RunUnlocked(RunEvent, frozen=True, kw_only=True):
    """A run has given a lock back, or left its line without having got it."""

    level: ClassVar[Level] = "debug"

    step: str
    key: str
    fence: int
    """The fence that it had; 0: it did not get the lock."""
    held: float
    """How many seconds it held it."""


class StepRecorded(RunEvent, frozen=True, kw_only=True):
    """A step has ended. It is durable before anything else is done."""

    level: ClassVar[Level] = "debug"

    step: str
    fence: int
    failed: bool


class StepRetried(RunEvent, frozen=True, kw_only=True):
    """A step raised, and is tried again."""

    level: ClassVar[Level] = "warning"

    step: str
    attempt: int
    error: str
    """The type of the exception."""


class StepArgumentsDiffer(RunEvent, frozen=True, kw_only=True):
    """A recorded step is asked for with other arguments. The record counts; look at what makes the arguments."""

    level: ClassVar[Level] = "warning"

    step: str


class RunCodeDiffers(RunEvent, frozen=True, kw_only=True):
    """A run's history and the code here do not fit, so this worker leaves it alone."""

    level: ClassVar[Level] = "error"

    recorded: str
    asked: str


class RunLeftAlone(RunEvent, frozen=True, kw_only=True):
    """This worker does not have the workflow, or the version, that a run needs. It waits for one that does."""

    level: ClassVar[Level] = "warning"

    workflow: str
    version: str


class RunDeposed(RunEvent, frozen=True, kw_only=True):
    """This worker was taken for dead, and another one drives the run. What it did since is not recorded."""

    level: ClassVar[Level] = "error"

    workflow: str


class RunQuarantined(RunEvent, frozen=True, kw_only=True):
    """So many workers died with a run that it is not taken up again before somebody says so."""

    level: ClassVar[Level] = "error"

    workflow: str
    deaths: int


class RunConflicts(RunEvent, frozen=True, kw_only=True):
    """A run's records were refused again and again at the same place of its history, so it is quarantined.

    That is a defect of Standfast or of whatever else writes to the store; please report it. Nothing of what is recorded
    is lost. ``todo`` says what an operator does.
    """

    level: ClassVar[Level] = "error"

    workflow: str
    position: int
    """How many marks its history has."""
    todo: str


class UnloadSwallowed(RunEvent, frozen=True, kw_only=True):
    """A workflow's code caught what unloads it, and went on. Let ``BaseException`` pass in workflows."""

    level: ClassVar[Level] = "warning"

    workflow: str


class RunLeftBehind(RunEvent, frozen=True, kw_only=True):
    """A worker has stopped while a step of this run went on, which was cancelled and does not end.

    The run is handed back, and another worker runs the step again; whatever the first one still does outside of
    Standfast may overlap with that. Let ``asyncio.CancelledError`` pass in steps and actions.
    """

    level: ClassVar[Level] = "warning"

    workflow: str


class WorkerWaits(Event, frozen=True, kw_only=True):
    """A worker was told to stop, and waits for what is under way: at most ``grace`` seconds, then it is cancelled.

    ``waits_for`` names the first of them: runs with their steps, requests with their actions; ``count`` says how many
    there are. Durable ones are handed back, and others go on with them. Ctrl-C, or another signal to stop, does not
    wait: a second one under ``standfast worker`` cancels the steps at once; elsewhere it ends the process.
    """

    level: ClassVar[Level] = "warning"

    waits_for: tuple[str, ...]
    count: int
    grace: float


class LoopHeldUp(Event, frozen=True, kw_only=True):
    """The event loop of a worker stood still for half a second or longer: something in async code blocks it.

    ``seconds`` is how long, to a tenth of a second. Let plain functions be steps: they run in threads. Leases are not
    lost by it, but every run here waits.
    """

    level: ClassVar[Level] = "warning"

    seconds: float


class WorkerDied(Event, frozen=True, kw_only=True):
    """A worker is gone without a word. Its runs are made ready for others."""

    level: ClassVar[Level] = "warning"

    presence: str
    runs: int


class WorkerFails(Event, frozen=True, kw_only=True):
    """A worker drives nothing because the store fails; ``problem`` says how. It goes on trying.

    It is told once, until the worker has got on again.
    """

    level: ClassVar[Level] = "error"

    problem: str
