"""What operators need: credentials and encryption of a store, log lines, explanations of lines, moving a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast._lazy import lazy_names

if TYPE_CHECKING:
    from standfast.locks.inspect import Explanation, LineSummary
    from standfast.log_hook import LogHook
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.stores.transfer import export_store, fence_store, import_store

__all__ = [
    "Credentials",
    "Explanation",
    "Keyring",
    "LineSummary",
    "LogHook",
    "export_store",
    "fence_store",
    "import_store",
]

# A fixed table, never data: which module each public name comes from.
_HOMES = {
    "Credentials": "standfast.stores.address",
    "Explanation": "standfast.locks.inspect",
    "Keyring": "standfast.stores.encryption",
    "LineSummary": "standfast.locks.inspect",
    "LogHook": "standfast.log_hook",
    "export_store": "standfast.stores.transfer",
    "fence_store": "standfast.stores.transfer",
    "import_store": "standfast.stores.transfer",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, globals())
