"""Every error that Holdfast raises on purpose.

One tree: ``except HoldfastError`` catches them all. Each error keeps its facts as attributes, survives
pickling, and its docstring says what to do next. Bad input is also a ``ValueError`` or ``TypeError``, and
is refused before anything is written. Losing a race is never an error: it is an answer
(:class:`holdfast.stores.Conflict`).
"""

from __future__ import annotations

from holdfast.errors._blocking import (
    BlockingInLoopError,
    PatchedThreadsError,
)
from holdfast.errors._exclusion import (
    HoldMisuseError,
    HoldTimeoutError,
    InvalidAttemptsError,
    LockOrderError,
    NotAsyncError,
    ReentryError,
    RetryError,
    StrayRetryError,
    UnknownModeError,
    WaitCycleError,
    WouldWaitError,
    WrongLoopError,
)
from holdfast.errors._fencing import (
    InvalidFenceError,
    InvalidFenceGuardError,
    InvalidFenceHeaderError,
    StaleFenceError,
)
from holdfast.errors._keys import (
    DuplicateFamilyError,
    InvalidKeyError,
    KeyTooLongError,
    NotAKeyError,
)
from holdfast.errors._locks import (
    InvalidLockArgumentError,
    LeaseLostError,
    LeaseTooShortError,
    LineFullError,
    LockKindError,
    TooHeavyError,
    WithdrawnError,
)
from holdfast.errors._rates import (
    CostTooHighError,
    InvalidRateError,
    RateMismatchError,
    RateTimeoutError,
)
from holdfast.errors._root import (
    HoldfastError,
)
from holdfast.errors._runs import (
    RunHeldError,
)
from holdfast.errors._simulation import (
    DeadlockError,
    HistoryTooLargeError,
    InvalidFaultsError,
    LivelockError,
    NotLinearizableError,
    NotSimulatedError,
    SimulationError,
)
from holdfast.errors._state import (
    AtomicStateConflictError,
    InvalidStateArgumentError,
    NotASlotError,
    PermitsDisagreeError,
    StaleWriteError,
    WrongStateTypeError,
)
from holdfast.errors._stores import (
    AttemptClosedError,
    ForeignHandleError,
    ForkedError,
    InvalidChangeError,
    InvalidUrlError,
    MissingExtraError,
    NetworkFilesystemError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
    WorkTimeoutError,
)
from holdfast.errors._values import (
    DecodeError,
    EncodeError,
    FormatTooNewError,
    InvalidDurationError,
)

__all__ = [
    "AtomicStateConflictError",
    "AttemptClosedError",
    "BlockingInLoopError",
    "CostTooHighError",
    "DeadlockError",
    "DecodeError",
    "DuplicateFamilyError",
    "EncodeError",
    "ForeignHandleError",
    "ForkedError",
    "FormatTooNewError",
    "HistoryTooLargeError",
    "HoldMisuseError",
    "HoldTimeoutError",
    "HoldfastError",
    "InvalidAttemptsError",
    "InvalidChangeError",
    "InvalidDurationError",
    "InvalidFaultsError",
    "InvalidFenceError",
    "InvalidFenceGuardError",
    "InvalidFenceHeaderError",
    "InvalidKeyError",
    "InvalidLockArgumentError",
    "InvalidRateError",
    "InvalidStateArgumentError",
    "InvalidUrlError",
    "KeyTooLongError",
    "LeaseLostError",
    "LeaseTooShortError",
    "LineFullError",
    "LivelockError",
    "LockKindError",
    "LockOrderError",
    "MissingExtraError",
    "NetworkFilesystemError",
    "NotAKeyError",
    "NotASlotError",
    "NotAsyncError",
    "NotLinearizableError",
    "NotSimulatedError",
    "OutcomeUnknownError",
    "PatchedThreadsError",
    "PermitsDisagreeError",
    "RateMismatchError",
    "RateTimeoutError",
    "ReentryError",
    "RetryError",
    "RunHeldError",
    "SimulationError",
    "StaleFenceError",
    "StaleWriteError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreGoneError",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "StrayRetryError",
    "TooHeavyError",
    "UnknownModeError",
    "UnsuitableStoreError",
    "WaitCycleError",
    "WithdrawnError",
    "WorkTimeoutError",
    "WouldWaitError",
    "WrongLoopError",
    "WrongStateTypeError",
]

# Tracebacks, pickles and the reference show the name that users import.
for _name in __all__:
    globals()[_name].__module__ = __name__
