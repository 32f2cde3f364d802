"""From what the driver and the server say to the errors of this library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from redis import exceptions

from standfast.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    Meaning = tuple[type[StoreError], str]


class NotSentError(Exception):
    """A command was certainly not sent."""


class ReplyLostError(Exception):
    """A command was sent, in part at least, and there is no reply."""


LOSSES: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError, exceptions.InvalidResponse)
"""What a driver raises when a connection broke."""

REFUSALS: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.BusyLoadingError,
    exceptions.ResponseError,
)
"""What it raises when the server said no: the first ones are losses as well to the driver, and are asked first."""

_UNAVAILABLE: Final = StoreUnavailableError
_CODES: Final[Mapping[str, Meaning]] = {
    "OOM": (
        StoreFullError,
        "the server has used up its maxmemory; give it more, or remove data that is not Standfast's",
    ),
    "READONLY": (StoreReadOnlyError, "this server is a replica; the URL must name the primary"),
    "MISCONF": (StoreFullError, "the server cannot save to its disk and takes no writes; see its log, free some space"),
    "NOREPLICAS": (_UNAVAILABLE, "too few replicas are connected for what min-replicas-to-write demands"),
    "LOADING": (_UNAVAILABLE, "the server is starting and reads its data; retry"),
    "BUSY": (StoreBusyError, "a script of somebody keeps the server busy; see SCRIPT KILL"),
    "MASTERDOWN": (_UNAVAILABLE, "this server is a replica without its primary; the URL must name the primary"),
    "CLUSTERDOWN": (_UNAVAILABLE, "the cluster is down: some of its slots are served by nobody"),
    "TRYAGAIN": (_UNAVAILABLE, "slots of the cluster are being moved; retry"),
    "UNKILLABLE": (StoreBusyError, "a script of somebody keeps the server busy"),
    "NOAUTH": (
        UnsuitableStoreError,
        "the server wants a password, and none was given; see 'The URL' in 'Run on Redis'",
    ),
    "WRONGPASS": (UnsuitableStoreError, "the server refuses this user and password"),
    "NOPERM": (UnsuitableStoreError, "this user may not do all that is needed; see 'Permissions' in 'Run on Redis'"),
    "WRONGTYPE": (StoreCorruptError, "a key of Standfast holds something else; choose another ?prefix="),
    "STANDFAST": (StoreCorruptError, "a key of Standfast holds something else; choose another ?prefix="),
    "CROSSSLOT": (UnsuitableStoreError, "this is a cluster behind a proxy; add ?cluster=true"),
}

_CLASSES: Final[Mapping[type[Exception], str]] = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.AuthenticationError: "WRONGPASS",
}
"""What the driver calls some of them; it leaves the code out of their message."""

_CODE: Final = re.compile(rf"(?:^|[\s-])({'|'.join(_CODES)})(?:\s|$)")
_ACL: Final = re.compile(r"can't run this command|no permissions|can't access|ACL failure", re.IGNORECASE)


def code_of(problem: BaseException) -> str:
    """Return the code of what a server answered, also if a script of ours stands between; empty if there is none."""
    if "Authentication required" in str(problem):
        return "NOAUTH"
    for known, code in _CLASSES.items():
        if isinstance(problem, known):
            return code
    found = _CODE.search(str(problem)[:200])
    if found is not None:
        return found[1]
    return "NOPERM" if _ACL.search(str(problem)) else ""


def translate(store: str, problem: BaseException) -> StoreError:
    """Return the error that says what a refusal means and what to do. Nothing was written."""
    if code_of(problem) in _CODES:
        kind, meaning = _CODES[code_of(problem)]
        return kind(store, f"{meaning} ({str(problem)[:200]})")
    return StoreError(store, f"the server refused: {str(problem)[:300]}")
