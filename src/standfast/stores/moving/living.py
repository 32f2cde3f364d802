"""Records that stand for a living process, and not for anything that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors import InvalidKeyError

if TYPE_CHECKING:
    from standfast.keys import RecordKey

PRESENCE: Final = "presence"
"""Says that a process is there. What it holds falls when it is not."""

WORKER: Final = "worker"
"""Guards what a process does with its runs. It stays when the process is gone, so that others find those runs."""

_KIND: Final = 2


def kind_of(key: RecordKey) -> str:
    """Return what kind of record lies at a key: its part after the namespace and the tenant. Empty if it has none."""
    try:
        parts = key.parts
    except InvalidKeyError:
        return ""
    return parts[_KIND] if len(parts) > _KIND else ""
