"""Which ticks are due: each once, late ones by the schedule's choice, with little work after a long outage."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from standfast.clock import Instant
from standfast.codec import Codec
from standfast.workflows.schedules.spec import (
    MOST_COUNTED,
    ScheduleState,
    change,
    due,
    fires_at,
    first_after,
    new_state,
    pause,
    resume,
    run_id_of,
)
from tests.unit.workflows.schedules.scene import DAY, MINUTE, NOON, at, fired, made

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.workflows.schedules.spec import ScheduleSpec

EVERY = made(every=MINUTE)
BACKFILLING = made(every=MINUTE, backfill=True, most_backfilled=5)


@pytest.mark.parametrize(("asked", "expected"), [(-DAY, 60), (0, 60), (59.9, 60), (60, 120), (3_601, 3_660)])
def test_a_period_counts_from_when_the_schedule_was_made(asked: float, expected: float) -> None:
    """The first tick is one period after the anchor, the others whole periods."""
    assert first_after(EVERY, NOON, at(asked)) == at(expected)


@pytest.mark.parametrize(
    ("seconds", "ticks", "missed", "wake"),
    [(59.9, [], 0, 60), (60, [60], 0, 120), (61, [60], 0, 120), (61.1, [], 1, 120), (180.5, [180], 2, 240)],
)
def test_without_backfill_a_tick_that_is_late_by_more_than_a_second_is_missed(
    seconds: float, ticks: list[float], missed: int, wake: float
) -> None:
    """It is counted, and the schedule goes on with the next."""
    answer = due(EVERY, "s", new_state(EVERY, NOON), at(seconds))
    assert (fired(answer), answer.missed, answer.wake_at) == (ticks, missed, at(wake))
    assert (answer.state.fired, answer.state.missed) == (len(ticks), missed)


def test_with_backfill_each_missed_tick_runs() -> None:
    """Three missed minutes are three runs, oldest first."""
    answer = due(BACKFILLING, "s", new_state(BACKFILLING, NOON), at(190))
    assert (fired(answer), answer.missed) == ([60, 120, 180], 0)
    assert answer.state == ScheduleState(at(240), NOON, fired=3, last_fired_at=at(180))


def test_backfill_stops_at_its_cap_and_counts_the_rest() -> None:
    """The oldest are made up for, the others are missed, and the one that is on time fires too."""
    answer = due(BACKFILLING, "s", new_state(BACKFILLING, NOON), at(20 * MINUTE))
    assert (fired(answer), answer.missed) == ([60, 120, 180, 240, 300, 1200], 14)
    assert answer.state.last_missed_at == at(19 * MINUTE)


def test_ticks_taken_a_few_at_a_time_are_the_same_ticks() -> None:
    """What ``most`` keeps back stays due at once, and the cap counts over all portions."""
    state, whole = new_state(BACKFILLING, NOON), due(BACKFILLING, "s", new_state(BACKFILLING, NOON), at(1_200))
    taken: list[Instant] = []
    while (answer := due(BACKFILLING, "s", state, at(1_200), most=2)).fire:
        taken, state = [*taken, *answer.fire], answer.state
    assert (tuple(taken), state) == (whole.fire, whole.state)


def test_the_cap_of_backfill_is_there_again_after_the_schedule_was_on_time() -> None:
    """Each outage has its own."""
    state = due(BACKFILLING, "s", new_state(BACKFILLING, NOON), at(1_200)).state
    assert len(due(BACKFILLING, "s", state, at(2_400)).fire) == 6


def test_thirty_days_of_seconds_are_counted_without_counting() -> None:
    """2.6 million missed ticks of a period cost no more than one, and the count is exact."""
    spec = made(every=1)
    answer = due(spec, "s", new_state(spec, NOON), at(30 * DAY + 0.5))
    assert (fired(answer), answer.missed, answer.state.uncounted) == ([30 * DAY], 30 * DAY - 1, False)


def test_too_many_missed_ticks_of_a_cron_expression_are_counted_as_at_least() -> None:
    """The count stops, says so, and the schedule goes on with the tick that is on time."""
    spec = made(cron="* * * * * *")
    answer = due(spec, "s", new_state(spec, NOON), at(30 * DAY + 0.5))
    assert (fired(answer), answer.missed, answer.state.uncounted) == ([30 * DAY], MOST_COUNTED, True)


def test_three_days_of_missed_minutes_are_counted_exactly() -> None:
    """An outage over a weekend, with clocks put forward in it, leaves a right count."""
    spec = made(cron="* * * * *", zone="Europe/Berlin")
    answer = due(spec, "s", new_state(spec, NOON), at(3 * DAY))
    assert (fired(answer), answer.missed, answer.state.uncounted) == ([3 * DAY], 3 * 1_440 - 1, False)


@pytest.mark.parametrize("outage", [10, 30 * DAY])
@pytest.mark.parametrize("spec", [made(every=1), made(cron="* * * * * *")], ids=["every", "cron"])
def test_after_an_outage_a_tick_that_is_just_in_time_is_not_left_out(spec: ScheduleSpec, outage: int) -> None:
    """To the microsecond: what is a second late fires, what is later is missed."""
    assert fired(due(spec, "s", new_state(spec, NOON), at(outage))) == [outage - 1, outage]
    assert fired(due(spec, "s", new_state(spec, NOON), Instant(at(outage) + 1))) == [outage]


def test_a_clock_that_is_set_back_fires_nothing_again() -> None:
    """The schedule waits until the clock is where it was."""
    state = due(EVERY, "s", new_state(EVERY, NOON), at(60)).state
    for seconds in (59, 0, -DAY, 60, 119):
        answer = due(EVERY, "s", state, at(seconds))
        assert (answer.fire, answer.missed, answer.state) == ((), 0, state)


def test_a_paused_schedule_neither_fires_nor_misses() -> None:
    """What falls into the pause is gone, and the first tick afterwards is on the old beat."""
    paused = pause(new_state(BACKFILLING, NOON))
    asleep = due(BACKFILLING, "s", paused, at(600))
    assert (asleep.fire, asleep.state, asleep.wake_at) == ((), paused, None)
    assert resume(BACKFILLING, paused, at(601)) == ScheduleState(at(660), NOON)


@pytest.mark.parametrize("again", [resume, change])
def test_what_has_fired_does_not_fire_again_after_the_clock_was_set_back(
    again: Callable[[ScheduleSpec, ScheduleState, Instant], ScheduleState],
) -> None:
    """Also not when the schedule is resumed or replaced then."""
    state = due(EVERY, "s", new_state(EVERY, NOON), at(60)).state
    assert again(EVERY, pause(state), at(0)).next_at > at(60)


def test_a_changed_period_counts_from_the_change() -> None:
    """The counts stay; the next tick is one new period away, also if the old one was far off."""
    state = due(EVERY, "s", new_state(EVERY, NOON), at(60)).state
    assert change(made(every=5), state, at(62)) == ScheduleState(at(67), at(62), fired=1, last_fired_at=at(60))


def test_the_state_is_stored_as_written_here() -> None:
    """Later versions read what this one stores."""
    state = due(BACKFILLING, "s", new_state(BACKFILLING, NOON), at(600)).state
    text = (
        b'1:{"next_at":1711800660000000,"anchor":1711800000000000,"fired":6,"missed":4,'
        b'"last_fired_at":1711800600000000,"last_missed_at":1711800540000000}'
    )
    states = Codec(ScheduleState, what="the state of a schedule")
    assert states.encode(state) == text
    assert states.decode(text) == state


# --- jitter and ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nominal", "jitter", "expected"),
    [
        ("nightly", 0, 600.0, 177.352616),
        ("nightly", 1_711_800_000_000_000, 600.0, 577.812932),
        ("nightly", 1_711_800_060_000_001, 600.0, 382.692702),
        ("ü@x", 1_711_800_000_000_000, 0.5, 0.48731),
        ("nightly", 0, 0.0, 0.0),
    ],
)
def test_jitter_is_the_same_for_ever(name: str, nominal: int, jitter: float, expected: float) -> None:
    """These values never change: two versions side by side must agree on when a tick fires."""
    spec = replace(made(every=MINUTE), jitter=jitter)
    assert fires_at(spec, name, Instant(nominal)) - nominal == round(expected * 1e6)


@given(st.text(max_size=20), st.integers(0, 2**52), st.floats(0.000_001, 1e6))
def test_jitter_is_less_than_the_jitter(name: str, nominal: int, jitter: float) -> None:
    """It lies in [0, jitter), to the microsecond."""
    spec = replace(made(every=MINUTE), jitter=jitter)
    assert 0 <= fires_at(spec, name, Instant(nominal)) - nominal < round(jitter * 1e6)


def test_a_tick_with_jitter_fires_later_and_keeps_its_name() -> None:
    """The next tick is told by its nominal time; it is due, and late, by the time it fires."""
    spec = made(every=MINUTE, jitter=30)
    state = new_state(spec, NOON)
    when = fires_at(spec, "s", state.next_at)
    assert (state.next_at, due(spec, "s", state, Instant(when - 1)).fire) == (at(60), ())
    assert due(spec, "s", state, Instant(when + 1_000_000)).fire == (at(60),)
    assert due(spec, "s", state, Instant(when + 1_000_001)).missed == 1


@pytest.mark.parametrize("number", range(1, 30))
def test_after_an_outage_lateness_is_told_by_when_a_tick_fires(number: int) -> None:
    """A tick that jitter has put off to just now is on time, however many before it were missed."""
    spec = made(every=10, jitter=9)
    when = fires_at(spec, "s", at(10 * number))
    assert due(spec, "s", new_state(spec, NOON), when).fire[-1:] == (at(10 * number),)


@pytest.mark.parametrize(("jitter", "most"), [(10.0 * MINUTE, None), (1.5 * MINUTE, 1)])
def test_who_comes_whenever_told_misses_nothing(jitter: float, most: int | None) -> None:
    """Also where jitter is longer than the time between two ticks, as a clock that is put back can make it."""
    spec = replace(EVERY, jitter=jitter)
    state, wake_at = new_state(spec, NOON), at(0)
    for _ in range(100):
        answer = due(spec, "s", state, wake_at, most=most)
        assert answer.missed == 0
        state, wake_at = answer.state, answer.wake_at or wake_at
    assert state.fired >= 90


@pytest.mark.parametrize(
    ("nominal", "expected"),
    [(1_711_800_000_000_000, "a@b@2024-03-30T12:00:00Z"), (1_711_800_000_000_001, "a@b@2024-03-30T12:00:00.000001Z")],
)
def test_the_run_of_a_tick_is_named_for_it(nominal: int, expected: str) -> None:
    """The id is the schedule's and the nominal time in UTC, and stays so for ever."""
    assert run_id_of("a@b", Instant(nominal)) == expected


@given(
    st.tuples(st.text("a@:Z0", max_size=4), st.integers(0, 2**53)),
    st.tuples(st.text("a@:Z0", max_size=4), st.integers(0, 2**53)),
)
def test_two_ticks_never_share_a_run(one: tuple[str, int], other: tuple[str, int]) -> None:
    """Different schedules or times give different ids."""
    ids = [run_id_of(name, Instant(nominal)) for name, nominal in (one, other)]
    assert (ids[0] == ids[1]) == (one == other)


# --- any schedule, looked at whenever -------------------------------------------------------------------------------

SCHEDULES = [
    made(every=1),
    made(every=7.5, jitter=7),
    made(cron="*/5 * * * *", zone="Europe/Berlin", jitter="4 minutes"),
    made(cron="30 2 * * *", zone="Europe/Berlin"),
    made(cron="15,45 */2 * * *", zone="Australia/Lord_Howe"),
]


def handled(spec: ScheduleSpec, state: ScheduleState) -> int:
    """Count the ticks from noon until the next one, the slow way."""
    count, tick = 0, first_after(spec, NOON, NOON)
    while tick < state.next_at:
        count, tick = count + 1, first_after(spec, NOON, tick)
    return count


looks = st.lists(st.integers(-3 * 10**8, 4 * 10**9), min_size=1, max_size=30)
"""By how many microseconds the clock moves between looks: seconds to an hour on, or minutes back."""


@given(spec=st.sampled_from(SCHEDULES), moves=looks, backfill=st.booleans(), most=st.none() | st.integers(1, 3))
def test_every_tick_is_handled_once_and_in_order(
    spec: ScheduleSpec, moves: list[int], most: int | None, *, backfill: bool
) -> None:
    """However the clock moves, ticks only go forward, none fires twice, none before its time, and none is lost."""
    chosen = replace(spec, backfill=backfill, most_backfilled=1_000_000)
    state, now, seen, missed = new_state(chosen, NOON), int(NOON), [NOON], 0
    for move in moves:
        now += move
        answer = due(chosen, "s", state, Instant(now), most=most)
        assert all(fires_at(chosen, "s", tick) <= now for tick in answer.fire)
        seen, state, missed = [*seen, *answer.fire], answer.state, missed + answer.missed
    assert all(earlier < later for earlier, later in pairwise([*seen, state.next_at]))
    assert len(seen) - 1 + missed == handled(chosen, state) == state.fired + state.missed
    assert not (backfill and missed)
