"""Which ticks of a schedule are due, and when to look again: functions of values.

A tick has a **nominal** time, which the schedule names. It fires at its nominal time or, with jitter, a little later.
What the state keeps as ``next_at`` is always nominal and only ever grows, so no tick is handled twice, also if the
clock is set back; whoever commits the next state together with the runs of its ticks makes exactly one run for each.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from standfast.clock import MICROSECONDS, Instant
from standfast.codec import Codec
from standfast.errors import InvalidScheduleError
from standfast.workflows.schedules.cron import ticks

if TYPE_CHECKING:
    from standfast.workflows.schedules.specification import ScheduleSpec

GRACE: Final = 1_000_000
"""Microseconds by which a tick may be late and still counts as on time."""

MOST_COUNTED: Final = 10_000
"""How many missed ticks of a cron expression are counted at a time; periods are counted by arithmetic."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HASH_BITS: Final = 64


class ScheduleState(Struct, frozen=True, omit_defaults=True):
    """Where a schedule is. Points in time are nominal.

    Attributes:
        next_at: The next tick to handle; every earlier one has been.
        anchor: When the schedule was made or last changed; periods count from here.
        fired: How many ticks have fired.
        missed: How many were left out because they were late.
        uncounted: Whether more were missed than ``missed`` says, as there were too many to count.
        last_fired_at: The latest tick that fired.
        last_missed_at: The latest that was missed.
        backfilled: How many late ticks were made up for since it was last on time.
        paused: Whether it fires at all.
    """

    next_at: Instant
    anchor: Instant
    fired: int = 0
    missed: int = 0
    uncounted: bool = False
    last_fired_at: Instant | None = None
    last_missed_at: Instant | None = None
    backfilled: int = 0
    paused: bool = False


STATES: Final[Codec[ScheduleState]] = Codec(ScheduleState, what="the state of a schedule")


class Due(Struct, frozen=True):
    """What is to be done now.

    Attributes:
        fire: The nominal times of the ticks to start a run for, oldest first.
        missed: How many ticks are left out because they are late.
        state: The state to store in the commit that starts the runs.
        wake_at: When to ask again; None while paused. It is not after now if ``most`` kept ticks back.
        late: How many of those to fire are made up for; they come first.
    """

    fire: tuple[Instant, ...]
    missed: int
    state: ScheduleState
    wake_at: Instant | None
    late: int = 0


# --- the next tick --------------------------------------------------------------------------------------------------


def first_after(spec: ScheduleSpec, anchor: Instant, at: Instant) -> Instant:
    """Return the nominal time of the first tick after ``at``.

    Ticks of a period lie whole periods after ``anchor``, the first of them one period after it.

    Raises:
        UnknownZoneError: This machine does not know the zone of the schedule.
    """
    if spec.cron is not None:
        return next(ticks(spec.cron, spec.zone, at))
    period = _period(spec)
    return Instant(anchor + max(1, (at - anchor) // period + 1) * period)


def fires_at(spec: ScheduleSpec, schedule_id: str, nominal: Instant) -> Instant:
    """Return when a tick fires: its nominal time and its share of the jitter."""
    return Instant(nominal + _jitter(schedule_id, nominal, spec.jitter))


def jitter_of(schedule_id: str, nominal: Instant, jitter: float) -> float:
    """Return by how many seconds a tick fires later: at least 0, less than ``jitter``, the same for ever."""
    return _jitter(schedule_id, nominal, jitter) / MICROSECONDS


def run_id_of(schedule_id: str, nominal: Instant) -> str:
    """Return the id of the run that a tick starts: ``daily-report@2024-03-31T07:00:00Z``.

    No two ticks have the same: what follows the last ``@`` is the nominal time in UTC.
    """
    moment = (_EPOCH + timedelta(microseconds=nominal)).replace(tzinfo=None)
    return f"{schedule_id}@{moment.isoformat()}Z"


def _jitter(schedule_id: str, nominal: Instant, jitter: float) -> int:
    """Return a share of the jitter in microseconds, in whole numbers, so that every machine finds the same."""
    if not jitter:
        return 0
    digest = blake2b(f"{nominal}:{schedule_id}".encode(), digest_size=_HASH_BITS // 8).digest()
    return int.from_bytes(digest) * round(jitter * MICROSECONDS) >> _HASH_BITS


def _period(spec: ScheduleSpec) -> int:
    if not spec.every:
        raise InvalidScheduleError("time", "nothing", "it has neither cron nor every")
    return round(spec.every * MICROSECONDS)


# --- the state ------------------------------------------------------------------------------------------------------


def new_state(spec: ScheduleSpec, created_at: Instant, *, paused: bool = False) -> ScheduleState:
    """Return the state of a schedule that is made now."""
    return ScheduleState(first_after(spec, created_at, created_at), created_at, paused=paused)


def pause(state: ScheduleState) -> ScheduleState:
    """Return the state of a schedule that no longer fires."""
    return replace(state, paused=True)


def resume(spec: ScheduleSpec, state: ScheduleState, now: Instant) -> ScheduleState:
    """Return the state of a schedule that fires again, from its first tick after now on.

    Ticks that fell into the pause are neither made up for nor counted as missed.
    """
    handled_until = Instant(max(now, state.next_at - 1))
    return replace(state, paused=False, next_at=first_after(spec, state.anchor, handled_until), backfilled=0)


def change(spec: ScheduleSpec, state: ScheduleState, now: Instant) -> ScheduleState:
    """Return the state of a schedule that is replaced by ``spec`` now; its counts stay, a period counts from now.

    What has fired does not fire again, also if the clock was set back since.
    """
    handled_until = max(now, state.last_fired_at or now, state.last_missed_at or now)
    return replace(state, anchor=now, next_at=first_after(spec, now, handled_until), backfilled=0)


# --- what is due ----------------------------------------------------------------------------------------------------


def due(spec: ScheduleSpec, schedule_id: str, state: ScheduleState, now: Instant, *, most: int | None = None) -> Due:
    """Return which ticks to fire now, which are missed, and the state after that.

    A tick that is more than a second late is missed, unless the schedule backfills: then up to ``most_backfilled``
    late ticks fire, the oldest first, and the rest is missed. The work is bounded however long nobody was there.

    Args:
        spec: The schedule.
        schedule_id: Its id.
        state: Its stored state.
        now: The present, by the clock of the store.
        most: How many ticks to fire at once; the others stay due.

    Raises:
        UnknownZoneError: This machine does not know the zone of the schedule.
    """
    if state.paused:
        return Due((), 0, state, None)
    fire: list[Instant] = []
    made_up = 0
    after, wake_at = state, _wake_at(spec, schedule_id, state)
    while wake_at <= now and (most is None or len(fire) < most):
        late = wake_at < now - GRACE
        if late and not (spec.backfill and after.backfilled < spec.most_backfilled):
            after = _pass_over(spec, after, Instant(now - GRACE - round(spec.jitter * MICROSECONDS)))
            wake_at = _wake_at(spec, schedule_id, after)
        else:
            fire.append(after.next_at)
            made_up += late
            after = _fired(spec, after, late=late)
            wake_at = max(wake_at, _wake_at(spec, schedule_id, after))
    if wake_at > now and after.backfilled:
        after = replace(after, backfilled=0)
    return Due(tuple(fire), after.missed - state.missed, after, wake_at, made_up)


def _wake_at(spec: ScheduleSpec, schedule_id: str, state: ScheduleState) -> Instant:
    """Return when the next tick fires: never before the one that fired last, however they were shifted."""
    own = fires_at(spec, schedule_id, state.next_at)
    return own if state.last_fired_at is None else max(own, fires_at(spec, schedule_id, state.last_fired_at))


def _fired(spec: ScheduleSpec, state: ScheduleState, *, late: bool) -> ScheduleState:
    return replace(
        state,
        next_at=first_after(spec, state.anchor, state.next_at),
        fired=state.fired + 1,
        last_fired_at=state.next_at,
        backfilled=state.backfilled + late,
    )


class _Passed(Struct, frozen=True):
    """Ticks that are left out: how many, the last of them, the first after them."""

    count: int
    last: Instant
    following: Instant
    exact: bool = True


def _pass_over(spec: ScheduleSpec, state: ScheduleState, until: Instant) -> ScheduleState:
    """Leave out the next tick, and all others before ``until``."""
    passed = (_passed_periods if spec.cron is None else _passed_cron)(spec, state.next_at, until)
    return replace(
        state,
        next_at=passed.following,
        missed=state.missed + passed.count,
        uncounted=state.uncounted or not passed.exact,
        last_missed_at=passed.last,
    )


def _passed_periods(spec: ScheduleSpec, first: Instant, until: Instant) -> _Passed:
    period = _period(spec)
    more = max(0, (until - 1 - first) // period)
    last = first + more * period
    return _Passed(more + 1, Instant(last), Instant(last + period))


def _passed_cron(spec: ScheduleSpec, first: Instant, until: Instant) -> _Passed:
    """Count tick by tick; of too many, count the first, and name the last of those."""
    last = first
    for count, following in enumerate(ticks(spec.cron or "", spec.zone, first), start=1):
        if following >= until:
            return _Passed(count, last, following)
        if count == MOST_COUNTED:
            break
        last = following
    return _Passed(MOST_COUNTED, last, first_after(spec, first, Instant(until - 1)), exact=False)
