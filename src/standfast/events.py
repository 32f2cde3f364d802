"""What stores, locks, runs and requests tell."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

from standfast.clock import Instant
from standfast.hooks import NO_HOOKS, SLOW_HOOK, Event, Hook, HookFailed, Hooks, HookSlow, Level
from standfast.keys import Key  # noqa: TC001 -- part of the fields, which programs may ask for

__all__ = [
    "NO_HOOKS",
    "SLOW_HOOK",
    "Checkpointed",
    "ClockStepped",
    "Committed",
    "DeadlockRefused",
    "EntriesFell",
    "Event",
    "FenceRefused",
    "ForeignHandleSeen",
    "HintHeard",
    "Hook",
    "HookFailed",
    "HookSlow",
    "Hooks",
    "LeaseLost",
    "Level",
    "LockAcquired",
    "LockEnd",
    "LockEvent",
    "LockOrderInverted",
    "LockRefused",
    "LockReleased",
    "LoopHeldUp",
    "OutcomeSettled",
    "OutcomeUnknown",
    "PermitsDisagree",
    "PresenceLost",
    "PresenceNotRenewed",
    "RateClosed",
    "RateGranted",
    "RateRefused",
    "ReleaseDelayed",
    "RequestDecided",
    "RequestEnded",
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
    "RunsSwept",
    "ScheduleEvent",
    "SchedulePaused",
    "SlowCommit",
    "SlowRoundTrip",
    "StepArgumentsDiffer",
    "StepRecorded",
    "StepRetried",
    "StoreEvent",
    "StoreNeedsCare",
    "StoreNotDurable",
    "StoreNotEncrypted",
    "StoreSized",
    "Swept",
    "TickFired",
    "TickSkipped",
    "TicksMissed",
    "UnloadSwallowed",
    "Verdict",
    "WorkerDied",
    "WorkerFails",
    "WorkerPolled",
    "WorkerWaits",
]


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


Verdict: TypeAlias = Literal["run", "queued", "started", "collected", "joined", "replayed", "refused"]
"""How it was decided about a request, see :class:`RequestDecided`."""


class RequestDecided(RequestEvent, frozen=True, kw_only=True):
    """It was decided what becomes of a request that arrived.

    ``verdict`` is ``run`` (it runs at once, in this process), ``queued`` (it waits here for its turn), ``started`` (it
    is a durable run), ``collected`` (it was put into a burst or a batch), ``joined`` (it shares the run of another
    request), ``replayed`` (the answer of the same request is given again) or ``refused``.
    """

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    flow: str
    name: str
    """The action's name, without its flow."""
    policy: str
    """How requests of one key are kept apart: ``queue``, ``reject``, ``debounce`` ..."""
    verdict: Verdict
    seconds: float
    """How many seconds it took to decide."""
    reason: str = ""
    """If it was refused: the type of the error that its caller was told."""


class RequestEnded(RequestEvent, frozen=True, kw_only=True):
    """A request that was taken on has ended, on the server that ran it."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    flow: str
    name: str
    policy: str
    outcome: str
    """``completed``, ``failed``, ``cancelled``, ``superseded``, ``interrupted``, ``refused``."""
    waited: float
    """How many seconds it waited for its turn."""
    ran: float
    """How many seconds its action ran; 0: it never began."""
    durable: bool = False
    """Whether it was a run of its action's workflow, whose id is the request's."""
    attempt: int = 1
    superseded: tuple[str, ...] = ()
    """The requests whose place it took."""


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
    """No worker was there when ticks were due, and the schedule does not make up for them, or not for all."""

    level: ClassVar[Level] = "warning"

    count: int
    last_missed_at: Instant


class SchedulePaused(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule fires no longer: a user has paused it, or no engine here has its workflow."""

    level: ClassVar[Level] = "warning"

    note: str


# --- what stores tell ----------------------------------------------------------------------------------------------


class StoreEvent(Event, frozen=True, kw_only=True):
    """The root of what stores tell. ``store`` is its address without secrets."""

    store: str

    @property
    def backend(self) -> str:
        """Which kind of store it is: ``sqlite``, ``postgresql``, ``memory`` ..."""
        return self.store.partition(":")[0]


class Committed(StoreEvent, frozen=True, kw_only=True):
    """A transaction was answered: it is durable, and each of its riders has its verdict."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    seconds: float
    """From when it left until it was answered. What was waited for before, until it left, is not in it."""
    riders: int
    """How many commits and updates shared the transaction."""
    conflicts: int
    """How many of them lost a race."""


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


class StoreNeedsCare(StoreEvent, frozen=True, kw_only=True):
    """A store works, and will not for long: it is nearly full, say. ``problem`` says what to do."""

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


class StoreSized(StoreEvent, frozen=True, kw_only=True):
    """How large the file of a store is, told after a sweep, and when some of it was given back.

    ``free`` bytes of it are unused, and ``given_back`` were cut off just now, in ``seconds``.
    """

    level: ClassVar[Level] = "debug"

    size: int
    free: int
    given_back: int
    seconds: float


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
    family: str = ""
    """The name of the key's family; empty: the key is a text, or the lock is Standfast's own."""
    kind: str = ""
    """``mutex``, ``semaphore``, ``mode lock`` ..., as far as that is known."""


class LockAcquired(LockEvent, frozen=True, kw_only=True):
    """A process holds a lock from now on. Locks that a run takes through its context tell :class:`RunLocked`."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    mode: str
    fence: int
    waited: float
    """How many seconds it took, from the call on."""
    presence: str
    """What it is held by; empty: by a lease with an end of its own."""


LockEnd: TypeAlias = Literal["released", "lost", "evicted", "expired"]


class LockReleased(LockEvent, frozen=True, kw_only=True):
    """A process holds a lock no longer.

    ``outcome`` is ``released``; ``expired`` (its lease or its ``max_hold`` was over); ``evicted`` (an operator took it
    away, or another process that took this one for dead); or ``lost`` (anything else, see :class:`LeaseLost`).
    """

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    mode: str
    fence: int
    held: float
    outcome: LockEnd


class LockRefused(LockEvent, frozen=True, kw_only=True):
    """A process did not get a lock that it asked for. ``reason`` is the type of the error that it was told."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    mode: str
    waited: float
    reason: str


class DeadlockRefused(LockEvent, frozen=True, kw_only=True):
    """A task or a run would have waited for ever, for itself or in a circle, and was refused.

    ``reason`` is the type of the error. Take the locks in one order everywhere, see ``KeyFamily(after=...)``.
    """

    level: ClassVar[Level] = "warning"

    reason: str
    run: str = ""
    """The run that asked; empty: a task of this process."""


class FenceRefused(LockEvent, frozen=True, kw_only=True):
    """A write came with a fence that is not the highest any more: its writer has lost the lock, and did not know.

    ``key`` is the resource. Nothing was written.
    """

    level: ClassVar[Level] = "warning"

    fence: int
    highest: int


class RateGranted(LockEvent, frozen=True, kw_only=True):
    """A caller has passed a rate limiter. ``key`` is the limiter's."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    cost: int
    waited: float | None
    """How many seconds it waited; None: it asked again and again by itself, as runs do, so that is not known."""


class RateRefused(LockEvent, frozen=True, kw_only=True):
    """A caller has not passed a rate limiter: it was to come later, or its time was over."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    cost: int
    waited: float
    retry_after: float
    """After how many seconds it could pass, as far as that is known."""


class RateClosed(LockEvent, frozen=True, kw_only=True):
    """A rate limiter lets no caller pass for ``seconds``: what it protects has asked for a pause."""

    level: ClassVar[Level] = "warning"

    seconds: float


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

    level: ClassVar[Level] = "info"

    presences: tuple[str, ...]


# --- what runs of workflows and their workers tell -----------------------------------------------------------------


class RunsSwept(Event, frozen=True, kw_only=True):
    """Runs of a workflow were deleted that the engine's retention does not keep any longer."""

    level: ClassVar[Level] = "debug"

    workflow: str
    runs: int


class RunEvent(Event, frozen=True, kw_only=True):
    """The root of what runs of workflows tell. ``run`` is the run's id."""

    run: str


class RunMoved(RunEvent, frozen=True, kw_only=True):
    """A run went from one state to another: it was started, claimed, suspended, handed back, or has ended."""

    workflow: str
    status: str
    """How it is now: ``pending``, ``running``, ``suspended``, ``completed`` ..."""
    fence: int = 0
    """The fence with which it is, or was, driven; 0: no worker drives it."""
    waited: float = 0.0
    """How many seconds it was in the state before."""
    about: str = ""
    """What it waits for, or why it ended, in words."""
    key: str = ""
    """What it counts for: the partitions of its limits, and its schedule; empty if it has none."""
    before: str = ""
    """How it was before; empty: it is new."""
    worker: str = ""
    """The presence of the worker that drives it, or did until now; empty: none."""
    claims: int = 0
    """How often it was claimed."""
    position: int = 0
    """How many events its history has, as far as that is known."""
    started_at: Instant = Instant(0)
    """When the run was started, by the store's time; 0: that is not known here."""
    changed_at: Instant = Instant(0)
    """When it went into this state, by the store's time."""
    ready_for: float | None = None
    """If it was claimed: how many seconds it could have gone on and no worker had it. None: that is not known."""
    orphaned_for: float | None = None
    """If it was taken over: how many seconds it was without a worker, since its last one was found dead."""
    parent: str = ""
    """The run that has started it."""

    @property
    def is_new(self) -> bool:
        """Whether the run was started just now."""
        return not self.before

    @property
    def is_claimed(self) -> bool:
        """Whether a worker drives the run from now on."""
        return self.status == "running" and bool(self.fence)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self.status in _ENDED


_ENDED: Final = frozenset({"completed", "failed", "cancelled", "timed_out"})


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
    family: str = ""
    """The name of the key's family; empty: the key is a text."""
    kind: str = ""
    mode: str = ""
    workflow: str = ""
    position: int = 0
    """How many events the run's history had then."""
    asked_at: Instant = Instant(0)
    """Since when it stood in line, by the store's time."""


class RunUnlocked(RunEvent, frozen=True, kw_only=True):
    """A run has given a lock back, or left its line without having got it."""

    level: ClassVar[Level] = "debug"

    step: str
    key: str
    fence: int
    """The fence that it had; 0: it did not get the lock."""
    held: float
    """How many seconds it held it."""
    family: str = ""
    kind: str = ""
    mode: str = ""
    workflow: str = ""
    position: int = 0
    held_from: Instant = Instant(0)
    """Since when it held the lock, by the store's time."""
    outcome: str = "released"
    """``released``; ``lost``: it was taken away before; ``refused``: it did not get the lock."""


class StepRecorded(RunEvent, frozen=True, kw_only=True):
    """A step has ended. It is durable before anything else is done."""

    level: ClassVar[Level] = "debug"

    step: str
    fence: int
    failed: bool
    workflow: str = ""
    name: str = ""
    """The name that the step was declared with; ``step`` is its id in the run, ``charge#2``."""
    attempt: int = 1
    """Which attempt has ended it."""
    started_at: Instant = Instant(0)
    """When that attempt began, by the store's time, as ``at`` is here."""
    seconds: float = 0.0
    """How long that attempt took."""
    position: int = 0
    """How many events the run's history has with it."""
    error: str = ""
    """The type of the exception, if it failed."""
    worker: str = ""


class StepRetried(RunEvent, frozen=True, kw_only=True):
    """A step raised, and is tried again."""

    level: ClassVar[Level] = "warning"

    step: str
    attempt: int
    error: str
    """The type of the exception."""
    fence: int = 0
    workflow: str = ""
    name: str = ""
    started_at: Instant = Instant(0)
    seconds: float = 0.0
    position: int = 0
    worker: str = ""
    waits: float = 0.0
    """How many seconds there are until the next attempt."""
    message: str = ""
    """What the exception said, with secrets masked."""
    place: str = ""
    """The line of the user's code that raised."""


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
    """Too many workers died with a run: it is not taken up again before an operator says so."""

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


class WorkerPolled(Event, frozen=True, kw_only=True):
    """A worker has looked by itself for runs that can go on, in case a hint was lost."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    seconds: float
    """How long that took."""
    found: int
    """How many runs it found of which no hint had told."""


class HintHeard(RunEvent, frozen=True, kw_only=True):  # rule: hooks of users have it
    """A hint told a worker of a new run that it claimed then; ``seconds`` is how long the hint was on its way."""

    level: ClassVar[Level] = "debug"
    frequent: ClassVar[bool] = True

    seconds: float


class WorkerDied(Event, frozen=True, kw_only=True):
    """A worker is gone without a word. Its runs are made ready for others."""

    level: ClassVar[Level] = "warning"

    presence: str
    runs: int


class WorkerFails(Event, frozen=True, kw_only=True):
    """A worker drives nothing because the store fails; ``problem`` says how. It goes on trying.

    It is told once, until the worker has got on again. After ``StoreRewoundError`` it does not try again: it has ended.
    """

    level: ClassVar[Level] = "error"

    problem: str
