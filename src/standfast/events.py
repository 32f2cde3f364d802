"""What runs of workflows and their workers tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Protocol, TypeAlias, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, Instant, monotonic
from standfast.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = [
    "NO_HOOKS",
    "SLOW_HOOK",
    "Checkpointed",
    "ClockStepped",
    "EntriesFell",
    "Event",
    "ForeignHandleSeen",
    "Hook",
    "HookFailed",
    "HookSlow",
    "Hooks",
    "LeaseLost",
    "Level",
    "LockEvent",
    "LockOrderInverted",
    "LoopHeldUp",
    "OutcomeSettled",
    "OutcomeUnknown",
    "PermitsDisagree",
    "PresenceLost",
    "PresenceNotRenewed",
    "ReleaseDelayed",
    "RequestEvent",
    "RequestsOverlap",
    "Requeued",
    "RunCodeDiffers",
    "RunConflicts",
    "RunDeposed",
    "RunEvent",
    "RunLeftAlone",
    "RunLeftBehind",
    "RunLocked",
    "RunMoved",
    "RunQuarantined",
    "RunUnlocked",
    "ScheduleEvent",
    "SchedulePaused",
    "SlowCommit",
    "SlowRoundTrip",
    "StepArgumentsDiffer",
    "StepRecorded",
    "StepRetried",
    "StoreEvent",
    "StoreNotDurable",
    "StoreNotEncrypted",
    "Swept",
    "TickFired",
    "TickSkipped",
    "TicksMissed",
    "UnloadSwallowed",
    "WorkerDied",
    "WorkerFails",
    "WorkerWaits",
]


# --- the root of all events ----------------------------------------------------------------------------------------

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Event(Struct, frozen=True, kw_only=True):
    """The root of all events. ``at`` is when it happened, by the clock of whoever tells."""

    level: ClassVar[Level] = "info"

    at: Instant


# --- what exclusion in one process tells ---------------------------------------------------------------------------


class LockOrderInverted(Event, frozen=True, kw_only=True):
    """Two keys were taken in both orders: one day two tasks will wait for each other for ever.

    Decide which of them comes first and declare it, ``KeyFamily(..., after=(FIRST,))``.
    """

    level: ClassVar[Level] = "warning"

    held: Key
    """The key that the task holds."""
    wanted: Key
    """The key that it asked for on top of it."""
    held_from: str
    """Where ``held`` was taken: file and line."""
    wanted_from: str
    """Where ``wanted`` was asked for."""
    opposite_held_from: str
    """Where, earlier, ``wanted`` was taken first."""
    opposite_wanted_from: str
    """Where, earlier, ``held`` was asked for on top of it."""


# --- what requests of flows tell -----------------------------------------------------------------------------------


class RequestEvent(Event, frozen=True, kw_only=True):
    """The root of what requests tell. ``request`` is the id of the request, and ``action`` its flow and action."""

    request: str
    action: str


class RequestsOverlap(RequestEvent, frozen=True, kw_only=True):
    """A request began although one that it superseded had not ended within its grace, and may still be at work.

    That one commits nothing any more. What it does outside of Standfast may overlap with what this one does: let
    actions end when they are cancelled, give the policy a longer ``grace``, or guard the resource with a fence.
    """

    level: ClassVar[Level] = "warning"

    key: str
    """The key in words."""
    superseded: tuple[str, ...]
    """The requests whose place it took."""


# --- hooks, and what is told about them ----------------------------------------------------------------------------

SLOW_HOOK: Final = 0.1
"""A hook that takes longer than this many seconds is reported."""


class HookFailed(Event, frozen=True, kw_only=True):
    """A hook raised. The other hooks are told once; what the hook was told about went on undisturbed."""

    level: ClassVar[Level] = "error"

    hook: str
    error: str
    """The type of the exception; its message may hold anything and is left out."""
    place: str
    """Where it was raised: file and line."""


class HookSlow(Event, frozen=True, kw_only=True):
    """A hook took so long that it holds up the work it watches. Let it hand its work to a thread or a queue."""

    level: ClassVar[Level] = "warning"

    hook: str
    seconds: float


class Hook(Protocol):
    """Anything that can be called with an event.

    It is called at once, on the thread where the event happens, possibly on several threads at a time, and must
    return quickly. What it returns is ignored, and so is what it raises, but for one line in the log.
    """

    def __call__(self, event: Event, /) -> object:
        """Take note of ``event``."""
        ...


@final
class Hooks:
    """Tells hooks about events, and keeps their failures away from the work.

    ``if hooks:`` is False when nobody listens; then an event need not even be made.
    """

    __slots__ = ("_hooks", "_reported")

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: Final = tuple(hooks)
        self._reported: dict[tuple[str, int], object] = {}

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def emit(self, event: Event) -> None:
        """Call every hook with ``event``, in order. Never raises what a hook raises."""
        for hook in self._hooks:
            started = monotonic()
            try:
                hook(event)
            except (KeyboardInterrupt, SystemExit):  # the process is asked to end; that is no failure of the hook
                raise
            except BaseException as error:  # noqa: BLE001 -- whatever it is, the work goes on
                self._report_failure(hook, error)
            if (taken := monotonic() - started) > SLOW_HOOK:
                self._report_slowness(hook, taken)

    def _report_failure(self, hook: Hook, error: BaseException) -> None:
        if not self._is_first("failed", hook):
            return
        name, kind, place = _name(hook), type(error).__name__, _place(error.__traceback__)
        _logger.error("event hook %s raised %s at %s; this is logged once", name, kind, place)
        self._tell_others(hook, HookFailed(at=SYSTEM_CLOCK.wall(), hook=name, error=kind, place=place))

    def _report_slowness(self, hook: Hook, seconds: float) -> None:
        if not self._is_first("slow", hook):
            return
        _logger.warning("event hook %s took %.1f s; this is logged once", _name(hook), seconds)
        self._tell_others(hook, HookSlow(at=SYSTEM_CLOCK.wall(), hook=_name(hook), seconds=seconds))

    def _is_first(self, trouble: str, hook: Hook) -> bool:
        mark = object()  # setdefault is atomic, so of several threads one is the first
        return self._reported.setdefault((trouble, id(hook)), mark) is mark

    def _tell_others(self, failing: Hook, event: Event) -> None:
        # Each hook is reported once, so hooks that fail at the news of each other's failure come to an end.
        others = Hooks(hook for hook in self._hooks if hook is not failing)
        others._reported = self._reported
        others.emit(event)


NO_HOOKS: Final = Hooks()
"""Nobody listens."""

_logger: Final = logging.getLogger("standfast")


def _name(hook: Hook) -> str:
    named: object = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}"


def _place(traceback: TracebackType | None) -> str:
    if traceback is None:
        return "?"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


# --- what schedules tell -------------------------------------------------------------------------------------------


class ScheduleEvent(Event, frozen=True, kw_only=True):
    """The root of what schedules tell. ``schedule`` is the schedule's id."""

    schedule: str


class TickFired(ScheduleEvent, frozen=True, kw_only=True):
    """A tick has started its run."""

    run: str
    nominal_at: Instant
    """The time that the schedule names."""
    late: float
    """How many seconds after its time, jitter included."""


class TickSkipped(ScheduleEvent, frozen=True, kw_only=True):
    """A tick has started nothing: the run before it is unfinished, or a limit or an error was in its way."""

    level: ClassVar[Level] = "warning"

    nominal_at: Instant
    reason: str


class TicksMissed(ScheduleEvent, frozen=True, kw_only=True):
    """Nobody was there when ticks were due, and the schedule does not make up for them, or not for so many."""

    level: ClassVar[Level] = "warning"

    count: int
    last_missed_at: Instant


class SchedulePaused(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule fires no longer: somebody has paused it, or nobody here has its workflow."""

    level: ClassVar[Level] = "warning"

    note: str


# --- what stores tell ----------------------------------------------------------------------------------------------


class StoreEvent(Event, frozen=True, kw_only=True):
    """The root of what stores tell. ``store`` is its address without secrets."""

    store: str


class SlowCommit(StoreEvent, frozen=True, kw_only=True):
    """A transaction took unusually long. The disk, the network or another writer is slow."""

    level: ClassVar[Level] = "warning"

    seconds: float
    riders: int
    """How many commits shared the transaction."""


class ClockStepped(StoreEvent, frozen=True, kw_only=True):
    """The time of day is not what the store's time followed: the machine's clock was set, or it was wrong before.

    ``seconds`` is by how much the time of day is ahead of the store's time, negative if it is behind. The store's time
    follows it without a jump, and no lease ends early. Schedules are off by what is left until ``settles_in`` seconds
    have passed. To be done with it sooner, close the file in all processes and open it again.
    """

    level: ClassVar[Level] = "warning"

    seconds: float
    settles_in: float


class ForeignHandleSeen(StoreEvent, frozen=True, kw_only=True):
    """Another library has the store's file open in this process. The store refuses to work until it is gone."""

    level: ClassVar[Level] = "error"


class StoreNotDurable(StoreEvent, frozen=True, kw_only=True):
    """A store was opened that may lose acknowledged commits when its server fails. ``problem`` says what to set."""

    level: ClassVar[Level] = "warning"

    problem: str


class StoreNotEncrypted(StoreEvent, frozen=True, kw_only=True):
    """Everything that goes to a server on another machine, passwords included, can be read on the way.

    Add ``?tls=true`` to its URL, or pass a TLS context with ``sf.admin.Credentials``. ``hosts`` says where it is.
    """

    level: ClassVar[Level] = "warning"

    hosts: tuple[str, ...]


class OutcomeUnknown(StoreEvent, frozen=True, kw_only=True):
    """The reply to a commit was lost: it may or may not have been written."""

    level: ClassVar[Level] = "warning"

    attempt: str
    problem: str


class OutcomeSettled(StoreEvent, frozen=True, kw_only=True):
    """It was found out for good whether an attempt was written."""

    attempt: str
    written: bool


class Checkpointed(StoreEvent, frozen=True, kw_only=True):
    """The write-ahead log was copied into the file. ``remaining`` pages were still in use by readers."""

    level: ClassVar[Level] = "debug"

    seconds: float
    pages: int
    remaining: int


class Swept(StoreEvent, frozen=True, kw_only=True):
    """Expired records were deleted."""

    level: ClassVar[Level] = "debug"

    seconds: float
    removed: int


# --- what durable locks tell ---------------------------------------------------------------------------------------


class PresenceNotRenewed(StoreEvent, frozen=True, kw_only=True):
    """A heartbeat failed. It is tried again; what this process holds is safe for another ``left`` seconds."""

    level: ClassVar[Level] = "warning"

    presence: str
    problem: str
    left: float


class SlowRoundTrip(StoreEvent, frozen=True, kw_only=True):
    """One answer of the store took so much of a lease that it was asked again. Nothing is lost.

    A few are no harm: a new connection, a failover, a pause of the machine. If most are so slow, choose a longer lease.
    """

    level: ClassVar[Level] = "warning"

    seconds: float
    lease: float


class PresenceLost(StoreEvent, frozen=True, kw_only=True):
    """This process can no longer rely on being taken for alive. What it held with that presence is lost."""

    level: ClassVar[Level] = "error"

    presence: str


class LockEvent(Event, frozen=True, kw_only=True):
    """The root of what durable locks tell. ``key`` is the lock's."""

    key: str


class LeaseLost(LockEvent, frozen=True, kw_only=True):
    """A hold ended before its time. Its body is cancelled, or told."""

    level: ClassVar[Level] = "error"

    fence: int
    reason: str


class ReleaseDelayed(LockEvent, frozen=True, kw_only=True):
    """A lock could not be given back, because the store did not answer. It is tried again until it does."""

    level: ClassVar[Level] = "warning"

    problem: str


class Requeued(LockEvent, frozen=True, kw_only=True):
    """A waiter had lost its place, because its process was not heard of for a whole lease, and joined at the end."""

    level: ClassVar[Level] = "warning"


class PermitsDisagree(LockEvent, frozen=True, kw_only=True):
    """This call site says another number of permits than the line has. The line's counts while it is in use."""

    level: ClassVar[Level] = "warning"

    stored: int | None
    asked: int | None


class EntriesFell(LockEvent, frozen=True, kw_only=True):
    """Holders or waiters were dropped, because their processes are gone."""

    level: ClassVar[Level] = "warning"

    presences: tuple[str, ...]


# --- what runs of workflows and their workers tell -----------------------------------------------------------------


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
