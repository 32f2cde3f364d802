"""The token bucket as a value: who passes, in which order, and when to come again."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import MICROSECONDS, Instant, seconds_between
from standfast.errors import InvalidArgumentError, LineFullError
from standfast.locks.rate_limiter import (
    MAX_WAITERS,
    BucketWaiter,
    Pass,
    RefillRate,
    TokenBucket,
    ask,
    call_first,
    change_rate,
    check_rate,
    check_waiter_ttl,
    close,
    forgettable_at,
    full_bucket,
    refill,
    reopen,
    settle,
    withdraw,
)

NAN = float("nan")
SLOW = check_rate(1, "30 seconds")


def at(seconds: float) -> Instant:
    """Return an instant by its seconds."""
    return Instant(round(seconds * MICROSECONDS))


def take(bucket: TokenBucket, who: str | None, now: float, cost: int = 1, ttl: float = 120) -> tuple[TokenBucket, Pass]:
    """Ask at a second."""
    return ask(bucket, cost, at(now), waiter=who, ttl=ttl)


def used(rate: RefillRate = SLOW, now: float = 1) -> TokenBucket:
    """Return a bucket that has just been emptied."""
    bucket, answer = take(full_bucket(rate, at(now)), None, now, rate.capacity)
    assert answer.granted
    return bucket


def line_of(bucket: TokenBucket, *names: str, now: float = 1, **options: Any) -> TokenBucket:
    """Return the bucket after each of them has asked once."""
    for name in names:
        bucket, _ = take(bucket, name, now, **options)
    return bucket


def waiting(bucket: TokenBucket) -> list[str]:
    """Return who stands in line."""
    return [waiter.id for waiter in bucket.waiters]


# --- the worked example ---------------------------------------------------------------------------------------------


def test_a_token_every_thirty_seconds() -> None:
    """One passes at second 1, the next is told 29 seconds at second 2, and passes at exactly 31."""
    bucket, first = take(full_bucket(SLOW, at(0)), "a", 1)
    bucket, early = take(bucket, "b", 2)
    bucket, nearly = take(bucket, "b", 30.999999)
    _, exact = take(bucket, "b", 31)
    assert (first.granted, first.position, first.retry_after) == (True, -1, 0)
    assert (early.granted, early.position, early.retry_after) == (False, 0, 29)
    assert not nearly
    assert exact


def test_who_is_second_in_line_is_told_two_intervals() -> None:
    """The time to come again counts those in front."""
    bucket = line_of(used(), "a")
    _, answer = take(bucket, "b", 1)
    assert (answer.position, answer.retry_after, answer.keep_within) == (1, 60, 120)


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_asking_in_between_does_not_lose_the_time_so_far() -> None:
    """A token that is half earned when somebody asks is earned at the same moment as if nobody had."""
    bucket = used()
    for second in range(2, 31):
        bucket, answer = take(bucket, None, second)
        assert not answer
    assert take(bucket, None, 31)[1]


def test_a_quiet_time_earns_no_more_than_the_capacity() -> None:
    """After a year of nothing as many pass at once as ever, and the next one waits a whole interval."""
    bucket = used(check_rate(3, 10), now=0)
    bucket, answer = take(bucket, None, 31_536_005, 3)
    assert answer
    assert take(bucket, None, 31_536_005)[1].retry_after == 10


def test_a_clock_that_goes_back_earns_nothing_and_breaks_nothing() -> None:
    """A time before the last one known is taken to be that one."""
    bucket = used(now=100)
    bucket, answer = take(bucket, "a", 5)
    assert answer.retry_after == 30
    assert refill(bucket, at(5)) == bucket
    assert take(bucket, "a", 130)[1]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 10**5), st.integers(0, 5))
def test_it_does_not_matter_how_often_a_bucket_is_looked_at(
    first: int, second: int, capacity: int, interval: int, tokens: int
) -> None:
    """Refilling in two steps is refilling in one."""
    bucket = TokenBucket(RefillRate(capacity, interval), min(tokens, capacity), Instant(0))
    end = Instant(first + second)
    assert refill(refill(bucket, Instant(first)), end) == refill(bucket, end)


def test_a_bucket_can_be_forgotten_once_it_is_full_and_nobody_waits() -> None:
    """From that instant on an unused bucket answers the same."""
    bucket = used(check_rate(3, 10), now=0)
    assert forgettable_at(bucket) == at(30)
    assert settle(bucket, at(30)) == full_bucket(bucket.rate, at(30))
    assert forgettable_at(line_of(bucket, "a", now=0, ttl=500)) == at(500)
    assert forgettable_at(close(bucket, at(700), at(0))) == at(700)


# --- the line -------------------------------------------------------------------------------------------------------


def test_nobody_passes_those_in_front() -> None:
    """A token that is there belongs to the first in line, also when another asks first."""
    bucket = line_of(used(), "a", "b")
    bucket, barging = take(bucket, "b", 31)
    _, stranger = take(bucket, None, 31)
    bucket, first = take(bucket, "a", 31)
    assert (barging.position, stranger.position, first.granted) == (1, 2, True)
    assert barging.retry_after > 0
    assert waiting(bucket) == ["b"]


def test_a_heavy_first_is_not_starved_by_light_ones() -> None:
    """Tokens gather for the one at the front, and those behind wait."""
    bucket = line_of(used(check_rate(3, 10), now=0), "heavy", now=0, cost=3)
    for second in (10, 20, 29):
        bucket, light = take(bucket, f"light {second}", second)
        assert not light
    bucket, heavy = take(bucket, "heavy", 30, 3)
    assert heavy
    assert take(bucket, "light 10", 30)[1].position == 0


def test_a_caller_without_a_name_keeps_no_place() -> None:
    """Who only tries is told where it would stand and leaves nothing behind."""
    bucket, answer = take(line_of(used(), "a"), None, 1)
    assert (answer.position, answer.keep_within) == (1, 0)
    assert waiting(bucket) == ["a"]


def test_waiters_that_do_not_ask_again_go_together() -> None:
    """Ten dead waiters cost those behind them one time to live, not ten."""
    bucket = line_of(used(now=0), *map(str, range(10)), now=0, ttl=60)
    bucket, late = take(bucket, "alive", 59.9, ttl=60)
    assert late.position == 10
    bucket, after = take(bucket, "alive", 60, ttl=60)
    assert after
    assert not bucket.waiters


def test_asking_again_keeps_the_place_and_lapsing_loses_it() -> None:
    """Who asks in time stays where it stands; who does not comes back at the end."""
    bucket = line_of(used(check_rate(1, 1000)), "a", "b", now=1, ttl=10)
    bucket = line_of(bucket, "b", now=9, ttl=10)
    assert waiting(line_of(bucket, "a", now=9, ttl=10)) == ["a", "b"]
    assert waiting(line_of(bucket, "a", now=12, ttl=10)) == ["b", "a"]


def test_a_fresh_place_is_left_as_it_is_unless_the_first_comes_at_another_time() -> None:
    """Then nothing is written, and the answer is what it would have been, but for how long the place is kept."""
    before = line_of(used(), "a", "b", now=1, ttl=40)
    for who in ("a", "b"):
        kept, answer = ask(before, 1, at(9), waiter=who, ttl=40, fresh=10)
        renewed, told = ask(before, 1, at(9), waiter=who, ttl=40)
        assert (kept, answer.keep_within) == (settle(before, at(9)), 32)
        assert (renewed != kept, told) == (True, Pass(False, answer.position, answer.retry_after, 40))
        assert ask(before, 1, at(11), waiter=who, ttl=40, fresh=10) == ask(before, 1, at(11), waiter=who, ttl=40)
    closed = close(before, at(900), at(2))
    later, answer = ask(closed, 1, at(3), waiter="a", ttl=40, fresh=10)
    assert (later.waiters[0].turn_at, answer.retry_after) == (at(900), 897)
    assert ask(closed, 1, at(3), waiter="b", ttl=40, fresh=10)[0] == settle(closed, at(3))


def test_a_fresh_place_is_written_if_another_number_of_tokens_is_wanted() -> None:
    """Those behind it count on what it says."""
    before = line_of(used(check_rate(5, 10)), "a", now=1, ttl=40)
    assert ask(before, 3, at(2), waiter="a", ttl=40, fresh=10)[0].waiters[0].cost == 3


def test_withdrawing_leaves_the_others_in_order() -> None:
    """Who gives up is gone at once, and doing it twice is harmless."""
    bucket = line_of(used(), "a", "b", "c")
    bucket, left = withdraw(bucket, "b", at(1))
    again, nothing = withdraw(bucket, "b", at(1))
    assert (left, nothing) == (True, False)
    assert waiting(again) == ["a", "c"]


def test_a_full_line_takes_nobody_more() -> None:
    """A record does not grow past its limit; those who stand in it keep their places."""
    crowd = tuple(BucketWaiter(str(n), 1, at(1000), at(1000)) for n in range(MAX_WAITERS))
    bucket = TokenBucket(SLOW, 0, at(0), waiters=crowd)
    with pytest.raises(LineFullError):
        take(bucket, "one more", 1)
    assert take(bucket, str(MAX_WAITERS - 1), 1)[1].position == MAX_WAITERS - 1


def test_only_a_first_that_moved_up_is_called() -> None:
    """Nobody is woken for nothing, and nobody twice."""
    before = line_of(used(), "a", "b", "c")
    assert call_first(before, line_of(before, "c", now=2), at(2))[1] is None
    after, called = call_first(before, withdraw(before, "a", at(2))[0], at(2))
    assert called == "b"
    assert call_first(after, after, at(2))[1] is None


def test_who_becomes_first_is_called_even_if_its_turn_comes_as_told() -> None:
    """Those behind the first do not come on time by themselves."""
    before = line_of(used(), "a", "b")
    assert call_first(before, take(before, "a", 31)[0], at(31))[1] == "b"


def test_a_first_whose_turn_comes_sooner_than_told_is_called() -> None:
    """Opening again is news for the first in line, and only once."""
    before = line_of(close(used(), at(1000), at(1)), "a", "b")
    after, called = call_first(before, reopen(before, at(2)), at(2))
    assert called == "a"
    assert call_first(after, after, at(2))[1] is None


def test_who_came_before_those_in_front_is_called_when_they_have_gone() -> None:
    """With tokens for both, the second is told at once when the first has taken its own."""
    bucket = line_of(used(check_rate(2, 10), now=0), "a", "b", now=0)
    before, early = take(bucket, "b", 20)
    assert (early.granted, early.retry_after) == (False, 10)
    assert call_first(before, take(before, "a", 20)[0], at(20))[1] == "b"


# --- cool-down ------------------------------------------------------------------------------------------------------


def test_nobody_passes_a_closed_bucket() -> None:
    """A cool-down holds everybody, tokens or not, until exactly its end."""
    bucket = close(full_bucket(SLOW, at(0)), at(60), at(0))
    bucket, answer = take(bucket, "a", 10)
    assert (answer.granted, answer.retry_after) == (False, 50)
    assert take(bucket, "a", 60)[1]


def test_waiters_keep_their_places_through_a_cool_down() -> None:
    """Closing changes when, not who is first; the second still waits an interval more."""
    bucket = close(line_of(used(), "a", "b"), at(100), at(1))
    bucket, first = take(bucket, "a", 1)
    bucket, second = take(bucket, "b", 1)
    assert (first.retry_after, second.retry_after) == (99, 129)
    assert waiting(bucket) == ["a", "b"]


def test_a_shorter_cool_down_does_not_end_a_longer_one() -> None:
    """Of two closings the later end counts, until somebody opens again."""
    bucket = close(close(used(), at(100), at(1)), at(50), at(1))
    assert bucket.closed_until == at(100)
    assert take(reopen(bucket, at(31)), "a", 31)[1]


# --- another rate ---------------------------------------------------------------------------------------------------


def test_another_rate_keeps_the_line_and_what_fits() -> None:
    """Waiters stay in order; tokens are neither made nor, if they fit, lost."""
    bucket = line_of(used(check_rate(2, 10)), "a", "b")
    wider = change_rate(refill(bucket, at(11)), check_rate(9, 5), at(12))
    assert (waiting(wider), wider.tokens, wider.filled_at) == (["a", "b"], 1, at(12))
    assert change_rate(full_bucket(check_rate(5, 1), at(0)), SLOW, at(0)).tokens == 1


def test_a_waiter_that_became_too_heavy_does_not_block_the_line() -> None:
    """After the capacity was lowered, who can never be served is let go."""
    bucket = line_of(line_of(used(check_rate(5, 10)), "heavy", cost=5), "light")
    assert waiting(change_rate(bucket, SLOW, at(2))) == ["light"]


# --- what makes no sense --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [0, -1, True, 1.0, "3", None, 10**20])
def test_a_capacity_that_makes_no_sense_is_refused(capacity: Any) -> None:
    """A capacity is a whole number from 1 that can be filled in a lifetime."""
    with pytest.raises(InvalidArgumentError, match="capacity"):
        check_rate(capacity, 1)


@pytest.mark.parametrize("interval", [0, -1, NAN, float("inf"), 90_000, "soon", None, "0.1us"])
def test_an_interval_that_makes_no_sense_is_refused(interval: Any) -> None:
    """An interval is a length of time, and a large bare number is probably milliseconds."""
    with pytest.raises(InvalidArgumentError, match="interval"):
        check_rate(1, interval)


@pytest.mark.parametrize("cost", [0, -1, True, 1.5, "1"])
def test_a_cost_that_makes_no_sense_is_refused(cost: Any) -> None:
    """A cost is a whole number of tokens, at least one."""
    with pytest.raises(InvalidArgumentError, match="cost"):
        take(used(), None, 1, cost)


def test_a_cost_that_never_fits_is_refused_at_once() -> None:
    """Waiting for more than the capacity would never end."""
    with pytest.raises(InvalidArgumentError, match="never holds more than 1"):
        take(used(), "a", 1, 2)


@pytest.mark.parametrize("waiter", ["", "x" * 129, "ä" * 65, "a\nb", "\ud800", 7])
def test_a_waiter_that_cannot_be_stored_is_refused(waiter: Any) -> None:
    """An id is short printable text, so that a full line fits into its record."""
    with pytest.raises(InvalidArgumentError, match="waiter"):
        take(used(), waiter, 1)


def test_a_place_is_kept_for_half_a_minute_or_four_intervals() -> None:
    """Without a word about it, the longer of the two counts."""
    assert check_waiter_ttl(None, check_rate(1, 1)) == 30
    assert check_waiter_ttl(None, SLOW) == 120
    assert check_waiter_ttl("5s", SLOW) == 5


# --- any program of calls -------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """Somebody asks or withdraws, so many microseconds after the last call."""

    after: int
    who: str | None
    cost: int
    gives_up: bool


CALLS = st.lists(
    st.builds(
        Call,
        st.integers(-20, 60),
        st.sampled_from([None, *"abcde"]),
        st.integers(1, 4),
        st.sampled_from([False] * 4 + [True]),
    ),
    max_size=60,
)


class Ledger:
    """The same bucket as a level of time: full is capacity x interval, and passing lowers it by cost x interval."""

    def __init__(self, rate: RefillRate) -> None:
        self.rate = rate
        self.level, self.now = rate.capacity * rate.interval, 0
        self.line: dict[str, int] = {}

    def move(self, now: int, ttl: int) -> None:
        """Let time pass, never backwards, and let those go who have not asked for a while."""
        self.level = min(self.rate.capacity * self.rate.interval, self.level + max(0, now - self.now))
        self.now = max(self.now, now)
        self.line = {who: asked for who, asked in self.line.items() if asked + ttl > self.now}

    def ask(self, who: str | None, cost: int) -> bool:
        """Pass if first and the level is high enough, else stand in line."""
        is_first = not self.line or next(iter(self.line)) == who
        if is_first and self.level >= cost * self.rate.interval:
            self.level -= cost * self.rate.interval
            self.line.pop(who or "", None)
            return True
        if who is not None:
            self.line[who] = self.now
        return False


@given(st.integers(1, 4), st.integers(1, 40), CALLS)
def test_any_program_of_calls_agrees_with_a_simple_ledger(capacity: int, interval: int, calls: list[Call]) -> None:
    """No token is lost and none is made, the line is in order of arrival, and the dead leave it."""
    ledger, ttl = Ledger(RefillRate(capacity, interval)), 150
    bucket, now = full_bucket(ledger.rate, Instant(0)), 1_000_000
    for call in calls:
        now += call.after
        ledger.move(now, ttl)
        if call.gives_up:
            bucket, _ = withdraw(bucket, str(call.who), Instant(ledger.now))
            ledger.line.pop(str(call.who), None)
        else:
            cost = min(call.cost, capacity)
            bucket, answer = ask(bucket, cost, Instant(ledger.now), waiter=call.who, ttl=ttl / MICROSECONDS)
            assert answer.granted == ledger.ask(call.who, cost)
        assert waiting(bucket) == list(ledger.line)


@given(st.integers(1, 4), st.integers(1, 40), CALLS)
def test_no_window_sees_more_than_the_capacity_and_what_was_earned(
    capacity: int, interval: int, calls: list[Call]
) -> None:
    """Between any two instants at most capacity + window / interval tokens are spent, whatever the clock does."""
    bucket, now, latest = full_bucket(RefillRate(capacity, interval), Instant(0)), 1_000_000, 0
    spent: Counter[int] = Counter()
    for call in calls:
        now += call.after
        latest = max(latest, now)
        cost = min(call.cost, capacity)
        bucket, answer = ask(bucket, cost, Instant(now), waiter=call.who, ttl=1.0)
        spent[latest] += cost if answer else 0
    for start in spent:
        for end in (each for each in spent if each >= start):
            tokens = sum(cost for moment, cost in spent.items() if start <= moment <= end)
            assert tokens <= capacity + (end - start) // interval


@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_everybody_who_comes_when_told_is_served_in_order(capacity: int, costs: list[int]) -> None:
    """Coming back at the told time, first in line first, is enough: each passes when it was told, without a wake."""
    bucket = used(check_rate(capacity, 10), now=0)
    told: list[float] = []
    for place, cost in enumerate(costs):
        bucket, answer = take(bucket, str(place), 0, min(cost, capacity), ttl=10_000)
        told.append(answer.retry_after)
    for place, cost in enumerate(costs):
        bucket, answer = take(bucket, str(place), told[place], min(cost, capacity), ttl=10_000)
        assert answer.granted
    assert seconds_between(at(0), bucket.filled_at) == told[-1]
