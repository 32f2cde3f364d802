"""Runs that wait for their turn in a line: what is written of them, and when they have waited enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.clock import later
from standfast.locks.driving.records import LineKeys
from standfast.workflows.storing.records import Status

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.workflows.limiting.arriving import InLine
    from standfast.workflows.running.host import Host
    from standfast.workflows.storing.records import Header, Life, Standing

PAGE: Final = 500


def ttl_of(header: Header) -> float | None:
    """Return how many seconds a run waits for its turn in all of its lines together; None: as long as it takes."""
    return min((each.ttl for each in header.lines if each.ttl is not None), default=None)


def waits_until(header: Header, since: Instant) -> Instant | None:
    """Return until when a run waits for its turn that began to; None: for as long as it takes."""
    ttl = ttl_of(header)
    ends = [header.deadline, None if ttl is None else later(since, ttl)]
    return min((end for end in ends if end is not None), default=None)


def waiting_life(life: Life, place: InLine, at: Instant, until: Instant | None) -> Life:
    """Return the life of a run that waits in a line from now on."""
    return structs.replace(
        life,
        changed_at=at,
        until=until,
        waits_for=f"its turn among the runs of {place.standing.label!r:.100}",
        admitted=place.admitted,
        ticket=place.waiting.ticket,
        collects=False,
    )


def admitted_life(life: Life, lines: int) -> Life:
    """Return the life of a run that holds a place in each of its lines."""
    return structs.replace(life, admitted=lines, ticket=None)


class Ending(Struct, frozen=True):
    """How a run ends that never began, and why. ``only_waiting``: unless it has its turn by now."""

    status: Status
    reason: str
    only_waiting: bool


def why_over(header: Header, life: Life, now: Instant) -> Ending | None:
    """Tell why a run that waits in a line is to wait no longer; None: it is."""
    if life.cancel is not None:
        return Ending("cancelled", life.cancel, only_waiting=False)
    if life.until is None or life.until > now or life.collects:
        return None
    if header.deadline is not None and header.deadline <= now:
        return Ending("timed_out", "its time was over before its turn came", only_waiting=True)
    return Ending("cancelled", _late_reason(header, header.lines[life.admitted]), only_waiting=True)


def missed(header: Header, life: Life) -> Standing | None:
    """Return the line in which the turn of a run that has ended did not come in time; None: it has ended otherwise."""
    if life.claims or life.cancel is None:
        return None
    return next((each for each in header.lines if life.cancel == _late_reason(header, each)), None)


def _late_reason(header: Header, line: Standing) -> str:
    """Return why a run is cancelled whose turn in a line does not come in time."""
    return f"its turn among the runs of {line.label!r:.100} did not come within {ttl_of(header) or 0:g} s"


async def count_waiting(host: Host, address: tuple[str, ...], most: int) -> int:
    """Count those who wait in a line, up to a number."""
    start, end = LineKeys(host.space, address).tickets_from(0)
    found = 0
    while found < most:
        page = await host.space.scan(start, end, limit=min(PAGE, most - found))
        found += len(page.records)
        if page.more is None:
            break
        start = page.more
    return found
