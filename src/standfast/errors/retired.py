"""Names of errors that are gone, for what was stored under them.

A step that failed with such an error has its old name in the history of its run. It is restored as the class that took
its place, with the message that was stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors._flows import (
    AuthenticationError,
    ForbiddenError,
    HttpError,
    InvalidInputError,
    TooManyRequestsError,
)
from standfast.errors._locks import LockMismatchError
from standfast.errors._root import ArgumentTypeError, DeclarationError, InvalidArgumentError, UsageError
from standfast.errors._stores import MissingExtraError, StoreClosedError, UnsuitableStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.errors._root import StandfastError

RETIRED: Final[Mapping[str, type[StandfastError]]] = {
    "ForeignHandleError": UnsuitableStoreError,
    "ForkedError": StoreClosedError,
    "UnknownZoneError": MissingExtraError,
    "UnsuitableConnectionError": InvalidArgumentError,
    "AccessTokenError": AuthenticationError,
    "InsufficientScopeError": ForbiddenError,
    "InvalidArrivalError": InvalidInputError,
    "InvalidRequestKeyError": InvalidInputError,
    "RateExceededError": TooManyRequestsError,
    "StoreNotEmptyError": UnsuitableStoreError,
    "UnsupportedBodyError": HttpError,
    "WrongStateTypeError": ArgumentTypeError,
    "LockKindError": LockMismatchError,
    "PermitsDisagreeError": LockMismatchError,
    "RateMismatchError": LockMismatchError,
    "NetworkFilesystemError": UnsuitableStoreError,
    "LimitKeyTypeError": ArgumentTypeError,
    "NotAKeyError": ArgumentTypeError,
    "NotASlotError": ArgumentTypeError,
    "NotAsyncError": ArgumentTypeError,
    "DuplicateFamilyError": DeclarationError,
    "InvalidFlowError": DeclarationError,
    "InvalidScheduleError": DeclarationError,
    "InvalidWorkflowError": DeclarationError,
    "WorkflowMismatchError": DeclarationError,
    "CostTooHighError": InvalidArgumentError,
    "InvalidAttemptsError": InvalidArgumentError,
    "InvalidDurationError": InvalidArgumentError,
    "InvalidExportError": InvalidArgumentError,
    "InvalidFaultsError": InvalidArgumentError,
    "InvalidFenceError": InvalidArgumentError,
    "InvalidFenceGuardError": InvalidArgumentError,
    "InvalidFenceHeaderError": InvalidArgumentError,
    "InvalidKeyError": InvalidArgumentError,
    "InvalidKeyringError": InvalidArgumentError,
    "InvalidLockArgumentError": InvalidArgumentError,
    "InvalidRateError": InvalidArgumentError,
    "InvalidStateArgumentError": InvalidArgumentError,
    "KeyTooLongError": InvalidArgumentError,
    "UnknownModeError": InvalidArgumentError,
    "BlockingInLoopError": UsageError,
    "ForeignTaskError": UsageError,
    "HoldMisuseError": UsageError,
    "PatchedThreadsError": UsageError,
    "StepCalledDirectlyError": UsageError,
    "StrayRetryError": UsageError,
    "WrongLoopError": UsageError,
}
