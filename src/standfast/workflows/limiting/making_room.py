"""Making room: the oldest unfinished runs of a line are cancelled, so that a new one has its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import RunNotFoundError
from standfast.workflows.limiting.standing import entry_id_of
from standfast.workflows.running.continuing import next_id
from standfast.workflows.starting.sending import cancel
from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from standfast.workflows.running.host import Host
    from standfast.workflows.storing.records import Standing


async def make_room(host: Host, run_id: str, standing: Standing, ticket: int) -> None:
    """Cancel as many runs in front of one that waits as need to go for its turn to come. Doing it again is harmless."""
    line = (await host.lines.line(standing.address).driver.look()).line
    in_front = [holder.entry.id for holder in line.holders]
    in_front += [waiter.entry.id for waiter in line.waiters if waiter.ticket < ticket]
    own = entry_id_of(run_id, standing)
    staying = [last for each in in_front if each != own and (last := await _last_of(host, each)) is not None]
    too_many = len(staying) + 1 - (line.rules.permits or standing.permits)
    for each in staying[: max(0, too_many)]:
        try:
            await cancel(host, each, f"the run {run_id!r} takes its place")
        except RunNotFoundError:
            continue


async def _last_of(host: Host, run_id: str) -> str | None:
    """Return the run that stands in a line under that id, which may have gone on as a new one; None: it is leaving."""
    while True:
        key = RunKeys(host.space, run_id).life
        record = (await host.space.read(key)).get(key)
        life = None if record is None else LIVES.decode(record.value)
        if life is None or not life.continues:
            break
        run_id = next_id(run_id)
    return None if life is None or life.has_ended or life.cancel is not None else run_id
