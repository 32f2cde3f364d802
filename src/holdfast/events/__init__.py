"""What happened, as frozen values, and the hooks that are told.

An event carries facts: keys, counts, seconds, places in the code. It never carries a stored value, an argument or
a password. Hooks are plain functions, called where the event happens; a hook that raises is reported once and
changes nothing else.

    def count(event: Event) -> None:
        counters[type(event).__name__] += 1

    hooks = Hooks([count, LogHook()])
"""

from __future__ import annotations

from holdfast.events._event import (
    Event,
    Level,
)
from holdfast.events._exclusion import (
    LockOrderInverted,
)
from holdfast.events._flows import (
    RequestEvent,
    RequestsOverlap,
)
from holdfast.events._hooks import (
    NO_HOOKS,
    SLOW_HOOK,
    Hook,
    HookFailed,
    Hooks,
    HookSlow,
)
from holdfast.events._locks import (
    EntriesFell,
    LeaseLost,
    LockEvent,
    PermitsDisagree,
    PresenceLost,
    PresenceNotRenewed,
    ReleaseDelayed,
    Requeued,
)
from holdfast.events._schedules import (
    ScheduleEvent,
    SchedulePaused,
    TickFired,
    TickSkipped,
    TicksMissed,
)
from holdfast.events._stores import (
    Checkpointed,
    ForeignHandleSeen,
    OutcomeSettled,
    OutcomeUnknown,
    SlowCommit,
    StoreEvent,
    StoreNotDurable,
    Swept,
)
from holdfast.events._workflows import (
    LoopHeldUp,
    RunCodeDiffers,
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
)

__all__ = [
    "NO_HOOKS",
    "SLOW_HOOK",
    "Checkpointed",
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
    "StepArgumentsDiffer",
    "StepRecorded",
    "StepRetried",
    "StoreEvent",
    "StoreNotDurable",
    "Swept",
    "TickFired",
    "TickSkipped",
    "TicksMissed",
    "UnloadSwallowed",
    "WorkerDied",
    "WorkerFails",
]
