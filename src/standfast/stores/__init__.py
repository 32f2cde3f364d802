"""Stores: versioned records with guarded atomic commits, and the backends that keep them."""

from __future__ import annotations

from standfast.stores.group_commit import GroupedStore, verdict_of
from standfast.stores.protocol import (
    ABSENT,
    Capabilities,
    Change,
    Check,
    Commit,
    Conflict,
    Decided,
    Decision,
    Delete,
    Notification,
    Put,
    Record,
    SharesTransactions,
    Snapshot,
    Store,
    Verdict,
    Wake,
    Watch,
    Worked,
)

__all__ = [
    "ABSENT",
    "Capabilities",
    "Change",
    "Check",
    "Commit",
    "Conflict",
    "Decided",
    "Decision",
    "Delete",
    "GroupedStore",
    "Notification",
    "Put",
    "Record",
    "SharesTransactions",
    "Snapshot",
    "Store",
    "Verdict",
    "Wake",
    "Watch",
    "Worked",
    "verdict_of",
]
