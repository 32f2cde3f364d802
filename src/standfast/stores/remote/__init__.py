"""What every store over a network has in common: from a batch of riders to one guarded write on a server.

Nothing can be computed inside a server's transaction without a round trip a question. So a batch is folded here, on
what is assumed of the records, and sent as one :class:`~standfast.stores.remote.server.Intent` that holds only if all
of that is true. If it is not, the server answers with the records as they are, and the batch is folded again.
"""

from __future__ import annotations

from standfast.stores.remote.backend import RemoteBackend, open_remote
from standfast.stores.remote.server import (
    Audience,
    DatabaseServer,
    Intent,
    Landed,
    Listener,
    Message,
    Row,
    WriteRefused,
    Written,
)

__all__ = [
    "Audience",
    "DatabaseServer",
    "Intent",
    "Landed",
    "Listener",
    "Message",
    "RemoteBackend",
    "Row",
    "WriteRefused",
    "Written",
    "open_remote",
]
