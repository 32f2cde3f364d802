"""What operators of a cluster should know: members that disagree, history that is never compacted, a full quota."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, final

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, monotonic
from standfast.errors import StoreError, StoreUnavailableError, UnsuitableStoreError
from standfast.events import StoreNeedsCare
from standfast.stores.etcd.gateway import ALARM, RANGE, STATUS, CompactedError
from standfast.stores.remote.service_time import instant_of

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.etcd.gateway import EtcdConnection

OLDEST: Final = (3, 5, 3)
"""Older ones have no gateway at this address, or are known to lose consistency (3.5.0 to 3.5.2)."""

APART: Final = 2 * MICROSECONDS
"""How far apart members' clocks are, in what their answers tell, before it is said."""

LOOK_EVERY: Final = 60.0
COMPACTED_WITHIN: Final = 3_600.0
"""History older than this many seconds should be gone; otherwise nothing compacts it."""

NEARLY_FULL: Final = 0.8
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", re.ASCII)


def warn(connection: EtcdConnection, hooks: Hooks, problem: str) -> None:
    """Tell of a cluster that needs care."""
    if hooks:
        hooks.emit(StoreNeedsCare(at=SYSTEM_CLOCK.wall(), store=connection.name, problem=problem))


async def check_members(connection: EtcdConnection, hooks: Hooks) -> None:
    """Refuse members that are too old; tell of clocks that disagree."""
    told = await asyncio.gather(*map(connection.version, connection.options.urls))
    for version, _ in told:
        found = _VERSION.match(version)
        if version and (found is None or tuple(map(int, found.groups())) < OLDEST):
            wanted = ".".join(map(str, OLDEST))
            raise UnsuitableStoreError(connection.name, f"a member has etcd {version}, and {wanted} or newer is needed")
    dates = [at for _, date in told if (at := instant_of(date)) is not None]
    if dates and max(dates) - min(dates) >= APART:
        apart = (max(dates) - min(dates)) // MICROSECONDS
        warn(connection, hooks, f"the clocks of its members are {apart} s apart; leases rely on them: set them by NTP")


@final
class EtcdHealth:
    """Looks now and then, and tells each thing once for as long as it lasts."""

    def __init__(self, connection: EtcdConnection, hooks: Hooks) -> None:
        self._connection, self._hooks = connection, hooks
        self._looked_at = 0.0
        self._marked: tuple[float, int] | None = None
        self._told: frozenset[str] = frozenset()

    async def look(self) -> None:
        """Look if it was not done lately."""
        now = monotonic()
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        try:
            problems = frozenset([each for each in (await self._full(), await self._history(now)) if each])
        except StoreError:  # commits and reads meet the same error and report it; or this user may not ask
            return
        for problem in problems - self._told:
            warn(self._connection, self._hooks, problem)
        self._told = problems

    async def _full(self) -> str:
        alarms = (await self._connection.ask(ALARM, {"action": "GET"})).alarms
        if any(alarm.alarm == "NOSPACE" for alarm in alarms):
            return "its quota is used up and it takes no writes; compact, defragment, then etcdctl alarm disarm"
        status = await self._connection.ask(STATUS, {})
        quota = status.dbSizeQuota or self._connection.options.quota
        if status.dbSize < NEARLY_FULL * quota:
            return ""
        return f"more than {NEARLY_FULL:.0%} of its quota of {quota:,} bytes are used; compact and defragment it"

    async def _history(self, now: float) -> str:
        """See whether what was written an hour ago has been compacted since."""
        if self._marked is None:
            self._marked = now, self._connection.revision
            return ""
        since, revision = self._marked
        if now - since < COMPACTED_WITHIN:
            return ""
        self._marked = now, self._connection.revision
        try:
            request = {"key": b"\0", "revision": revision, "count_only": True, "serializable": True}
            await self._connection.ask(RANGE, request)
        except (CompactedError, StoreUnavailableError):
            return ""
        return "its history is never compacted, so it grows until it is full; set --auto-compaction-retention=5m"
