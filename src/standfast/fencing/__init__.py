"""Fence guards: a resource outside of Standfast refuses a writer whose hold is over.

A lease alone cannot keep a paused process from writing later than it may. Its fence can: the number grows each time the
key changes hands, the writer sends it along, and the resource refuses any number below the highest it has seen.

- :class:`SqlFenceGuard` for tables, in the same transaction as the write.
- :func:`guard_redis` for Redis and Valkey, in the same script as the write.
- :func:`fence_header`, :func:`parse_fence_header` and :class:`FenceGate` for a service behind HTTP.

Only fences of the same key can be compared, and of a lock with several permits only those of the same slot: let one key
guard one resource.
"""

from __future__ import annotations

from standfast.fencing.gate import FenceGate
from standfast.fencing.header import FENCE_HEADER, FenceHeader, fence_header, parse_fence_header
from standfast.fencing.redis import GUARDED_COMMAND, guard_redis, guard_redis_blocking
from standfast.fencing.sql import SqlFenceGuard, SqlStyle

__all__ = [
    "FENCE_HEADER",
    "GUARDED_COMMAND",
    "FenceGate",
    "FenceHeader",
    "SqlFenceGuard",
    "SqlStyle",
    "fence_header",
    "guard_redis",
    "guard_redis_blocking",
    "parse_fence_header",
]
