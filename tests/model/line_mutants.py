"""Lines that are wrong, each in the way of some real lock, to see that the explorer finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from standfast.locks.line import Granted, Holder, Line, Waiting, advance, enter, leave, resize, sweep
from tests.model.line_world import Algebra

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.locks.line import Entry

    Alive = Callable[[Entry], bool]


def barging(line: Line, entry: Entry, now: Instant) -> tuple[Line, object]:
    """Let a newcomer have a free permit, whoever waits."""
    alone, answer = enter(structs.replace(line, waiters=()), entry, now)
    if isinstance(answer, Granted):
        return structs.replace(alone, waiters=leave(line, entry.id).waiters), answer
    return enter(line, entry, now)


def by_the_listed(line: Line, entry: Entry, now: Instant) -> tuple[Line, object]:
    """Admit by those that are in sight."""
    alone, answer = enter(structs.replace(line, unseen=0), entry, now)
    return structs.replace(alone, unseen=line.unseen), answer


def counts_kept(line: Line, now: Instant, alive: Alive) -> Line:
    """Let only those fall that are in sight."""
    swept = sweep(structs.replace(line, unseen_of=()), now, alive)
    return structs.replace(swept, unseen=line.unseen, unseen_of=line.unseen_of)


def of_the_owner(line: Line, entry_id: str) -> Line:
    """Release whatever the owner has, though it may be a later acquisition."""
    owner = entry_id.split(".", maxsplit=1)[0]
    holders = tuple(each for each in line.holders if each.entry.owner != owner)
    return structs.replace(leave(line, entry_id), holders=holders)


def counted_enter(line: Line, entry: Entry, now: Instant) -> tuple[Line, object]:
    """Count permits down, where a line would look at who holds."""
    if line.holder(entry.id) or line.waiter(entry.id) or line.waiters or not line.rules.permits:
        return enter(structs.replace(line, rules=structs.replace(line.rules, permits=0)), entry, now)
    holder = Holder(entry, max((each.slot + 1 for each in line.holders), default=0), now)
    fewer = resize(line, line.rules.permits - 1)
    return structs.replace(fewer, holders=(*line.holders, holder)), Granted(holder)


def counted_leave(line: Line, entry_id: str) -> Line:
    """Count permits up, even if the one who leaves has none."""
    return resize(leave(line, entry_id), (line.rules.permits or 0) + 1)


def immortal_waiters(line: Line, now: Instant, alive: Alive) -> Line:
    """Let only holders expire."""
    return structs.replace(sweep(line, now, alive), waiters=line.waiters)


def one_at_a_time(line: Line, now: Instant, alive: Alive) -> Line:
    """Let only the first waiter expire in each step."""
    swept = sweep(line, now, alive)
    first = [each.entry.id for each in line.waiters if not alive(each.entry)][:1]
    return structs.replace(swept, waiters=tuple(each for each in line.waiters if each.entry.id not in first))


def light_ones_first(line: Line, now: Instant) -> Line:
    """Serve whoever fits, past a heavy one at the front."""
    for waiter in line.waiters:
        single = advance(structs.replace(line, waiters=(waiter,)), now)
        if not single.waiters:
            line = structs.replace(line, holders=single.holders, waiters=leave(line, waiter.entry.id).waiters)
    return line


def past_the_horizon(line: Line, now: Instant) -> Line:
    """Take those in sight for the whole line."""
    return structs.replace(advance(structs.replace(line, horizon=None), now), horizon=line.horizon)


def to_the_end(line: Line, entry: Entry, now: Instant) -> tuple[Line, object]:
    """Send a waiter that asks again to the end."""
    return enter(line if line.holder(entry.id) else leave(line, entry.id), entry, now)


def evicting(line: Line, permits: int) -> Line:
    """Turn holders out when permits are lowered."""
    return structs.replace(resize(line, permits), holders=line.holders[:permits])


def patient(line: Line, entry: Entry, now: Instant) -> tuple[Line, object]:
    """Let an entry wait though there will never be so many permits."""
    more, answer = enter(resize(line, 99), entry, now)
    return (resize(more, line.rules.permits), answer) if isinstance(answer, Waiting) else enter(line, entry, now)


def stubborn(line: Line, now: Instant) -> Line:
    """Keep a front that has no chance."""
    front = line.waiters[:1]
    return line if any(not line.rules.ever_admit(each.entry) for each in front) else advance(line, now)


MUTANTS = {
    "no fence": Algebra(fence=lambda last, _now: last or 1),
    "fence from the clock": Algebra(fence=lambda _last, now: now + 1),
    "barging": Algebra(enter=barging),
    "reap without looking again": Algebra(rechecks=False),
    "release by owner": Algebra(leave=of_the_owner),
    "a counter for the set": Algebra(enter=counted_enter, leave=counted_leave),
    "waiters never expire": Algebra(sweep=immortal_waiters),
    "dead waiters expire one by one": Algebra(sweep=one_at_a_time),
    "renewal after the end": Algebra(sweeps_before_renewing=False),
    "light ones pass a heavy one": Algebra(advance=light_ones_first),
    "nobody moves up": Algebra(advance=lambda line, _now: line),
    "blind to the horizon": Algebra(advance=past_the_horizon),
    "asking again goes to the end": Algebra(enter=to_the_end),
    "lowering permits evicts": Algebra(resize=evicting),
    "only those in sight count": Algebra(enter=by_the_listed),
    "the count of a dead process is kept": Algebra(sweep=counts_kept),
    "too heavy for ever": Algebra(enter=patient, advance=stubborn),
}
