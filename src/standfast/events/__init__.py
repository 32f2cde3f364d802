"""What happened, as frozen values, and the hooks that are told.

An event carries facts: keys, counts, seconds, places in the code. It never carries a stored value, an argument or
a password. Hooks are plain functions, called where the event happens; a hook that raises is reported once and
changes nothing else.

    def count(event: Event) -> None:
        counters[type(event).__name__] += 1

    hooks = Hooks([count, LogHook()])
"""

from __future__ import annotations

from standfast.events._event import (
    Event,
    Level,
)
from standfast.events._exclusion import (
    LockOrderInverted,
)
from standfast.events._flows import (
    RequestEvent,
    RequestsOverlap,
)
from standfast.events._hooks import (
    NO_HOOKS,
    SLOW_HOOK,
    Hook,
    HookFailed,
    Hooks,
    HookSlow,
)
from standfast.events._locks import (
    EntriesFell,
    LeaseLost,
    LockEvent,
    PermitsDisagree,
    PresenceLost,
    PresenceNotRenewed,
    ReleaseDelayed,
    Requeued,
    SlowRoundTrip,
)
from standfast.events._schedules import (
    ScheduleEvent,
    SchedulePaused,
    TickFired,
    TickSkipped,
    TicksMissed,
)
from standfast.events._stores import (
    Checkpointed,
    ClockStepped,
    ForeignHandleSeen,
    OutcomeSettled,
    OutcomeUnknown,
    SlowCommit,
    StoreEvent,
    StoreNotDurable,
    StoreNotEncrypted,
    Swept,
)
from standfast.events._workflows import (
    LoopHeldUp,
    RunCodeDiffers,
    RunConflicts,
    RunDeposed,
    RunEvent,
    RunLeftAlone,
    RunLeftBehind,
    RunLocked,
    RunMoved,
    RunQuarantined,
    RunUnlocked,
    StepArgumentsDiffer,
    StepRecorded,
    StepRetried,
    UnloadSwallowed,
    WorkerDied,
    WorkerFails,
    WorkerWaits,
)

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
