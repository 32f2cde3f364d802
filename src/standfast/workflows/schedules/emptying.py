"""Discarding the runs of a schedule that wait for their turn, when it is paused or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.locks.driving.records import WAITERS, LineKeys
from standfast.workflows.limiting.admitting import end_if_unstarted
from standfast.workflows.limiting.waiting import Ending
from standfast.workflows.schedules.records import changing, commit, line_of

if TYPE_CHECKING:
    from standfast.scope import Scope
    from standfast.workflows.running.host import Host
    from standfast.workflows.schedules.records import Seen

PAGE: Final = 200


async def empty(host: Host, seen: Seen) -> bool:
    """Discard those who wait, and finish what that was for. Should this process die, another one does it again.

    False: somebody else has changed the schedule meanwhile.
    """
    how = "deleted" if seen.stored.is_deleted else "paused"
    ending = Ending("cancelled", f"its schedule was {how}", only_waiting=True)
    for run_id in await queued(host.space, seen.id):
        await end_if_unstarted(host, run_id, ending)
    after = None if seen.stored.is_deleted else structs.replace(seen.stored, is_emptying=False, wake_at=None)
    return await commit(host.space, changing(host.space, seen, after))


async def queued(scope: Scope, schedule_id: str) -> list[str]:
    """Return the runs that wait for their turn, the first in line first."""
    start, end = LineKeys(scope, line_of(schedule_id)).tickets_from(0)
    found: list[str] = []
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        found += [WAITERS.decode(record.value).entry.id for record in page.records.values()]
        if page.more is None:
            return found
        start = page.more
