"""Durations: what people write becomes seconds, and mistakes are refused."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.durations import DAY, MAX_SECONDS, Duration, optional_seconds, seconds, typed
from standfast.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5 seconds", 5),
        ("1 second", 1),
        ("100ms", 0.1),
        ("250 milliseconds", 0.25),
        ("500us", 0.0005),
        ("30s", 30),
        ("5m", 300),
        ("90 min", 5_400),
        ("1h", 3_600),
        ("1.5 hours", 5_400),
        ("7d", 7 * DAY),
        ("30 days", 30 * DAY),
        ("2 weeks", 14 * DAY),
        ("0s", 0),
        ("  10   SECONDS ", 10),
        ("2H", 7_200),
        (timedelta(minutes=2), 120),
        (timedelta(milliseconds=1.5), 0.0015),
        (3, 3),
        (2.5, 2.5),
        (0, 0),
    ],
)
def test_a_duration_is_read_as_people_write_it(written: Duration, expected: float) -> None:
    """Text with a unit, timedeltas and numbers all become seconds."""
    assert seconds(written) == pytest.approx(expected)
    assert type(seconds(written)) is float


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("5", "no unit"),
        ("seconds", "not a number"),
        ("5 bananas", "no unit 'bananas'"),
        ("5 months", "in days"),
        ("1 year", "in days"),
        ("-5s", "negative"),
        ("+5s", "not a number"),
        ("1e3s", "no unit 'e'|not a number"),
        ("1_000s", "not a number"),
        ("1,5 hours", "not a number"),
        (".5s", "not a number"),
        ("5.s", "not a number"),
        ("1h30m", "not a number"),
        ("5\N{NO-BREAK SPACE}s", "not a number"),
        ("\N{ARABIC-INDIC DIGIT FIVE} seconds", "not a number"),
        ("\N{FULLWIDTH DIGIT FIVE}s", "not a number"),
        ("5 wee\N{KELVIN SIGN}s", "not a number"),
        ("5\x00s", "not a number"),
        ("inf s", "not a number"),
        (f"{'9' * 50} d", "longer than"),
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(days=-1), "negative"),
        (timedelta.max, "longer than"),
        (float("nan"), "not a number"),
        (float("inf"), "longer than"),
        (float("-inf"), "negative"),
        pytest.param(10**400, "longer than", id="a-huge-integer"),
        pytest.param(-(10**5000), "negative", id="minus-a-huge-integer"),
        (True, "no length of time"),
        (None, "no length of time"),
        (b"5s", "no length of time"),
        (Fraction(1, 2), "no length of time"),
        (["5s"], "no length of time"),
    ],
)
def test_a_mistake_is_refused_with_what_to_write(mistake: Duration, problem: str) -> None:
    """What is no duration is refused, and the message says what is wrong and what to write."""
    with pytest.raises(InvalidArgumentError, match=problem) as caught:
        seconds(mistake)
    assert '"5 seconds"' in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_bare_number_that_is_probably_milliseconds_is_refused() -> None:
    """A lease of 90000 means 90 seconds more often than a day; with a unit it is taken at its word."""
    with pytest.raises(InvalidArgumentError, match=r"90000 cannot be a lease: .* milliseconds"):
        seconds(90_000, what="lease", maximum_bare=DAY)
    assert seconds("90000 s", what="lease", maximum_bare=DAY) == 90_000
    assert seconds(timedelta(seconds=90_000), maximum_bare=DAY) == 90_000
    assert seconds(DAY, maximum_bare=DAY) == DAY


@pytest.mark.parametrize(("text", "expected"), [("30", 30), (" 2.5 ", 2.5), ("30s", 30), ("100ms", 0.1)])
def test_a_number_that_was_typed_is_in_seconds(text: str, expected: float) -> None:
    """In a URL or on a command line there is nothing but text."""
    assert seconds(typed(text)) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "five", "5 bananas", "-5", "9" * 65])
def test_what_was_typed_and_is_no_duration_is_refused(text: str) -> None:
    """As it is in code."""
    with pytest.raises(InvalidArgumentError):
        seconds(typed(text))


def test_a_duration_below_the_minimum_or_above_the_maximum_is_refused() -> None:
    """The limits themselves are allowed."""
    assert seconds("10ms", minimum=0.01, maximum=1) == 0.01
    assert seconds(1.0, minimum=0.01, maximum=1) == 1
    with pytest.raises(InvalidArgumentError, match=r"a lease: it is shorter than 0.01 seconds"):
        seconds(0, what="lease", minimum=0.01)
    with pytest.raises(InvalidArgumentError, match="longer than 1 seconds"):
        seconds(1.1, maximum=1)


def test_a_negative_duration_can_be_allowed() -> None:
    """Where it makes sense, the caller lowers the minimum."""
    assert seconds(-2.5, minimum=-3) == -2.5


def test_no_duration_means_no_limit() -> None:
    """None stays None where a duration is optional, and is refused where it is not."""
    assert optional_seconds(None) is None
    assert optional_seconds("1s") == 1
    with pytest.raises(InvalidArgumentError, match="a timeout"):
        optional_seconds(-1, what="timeout")


def test_a_huge_text_is_refused_without_being_read() -> None:
    """Megabytes of digits are neither parsed nor repeated in the message."""
    with pytest.raises(InvalidArgumentError, match="10,000,000 characters") as caught:
        seconds("9" * 10_000_000)
    assert len(str(caught.value)) < 200


@given(st.text() | st.text("0123456789. smhd"))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    """No text gives anything but seconds within the limits, or the one error."""
    try:
        assert 0 <= seconds(text) <= MAX_SECONDS
        message = ""
    except InvalidArgumentError as error:
        message = str(error)
    assert message.isascii()
    assert message.isprintable()


@given(st.floats(0, MAX_SECONDS))
def test_a_number_of_seconds_is_kept_exactly(length: float) -> None:
    """Nothing is rounded on the way."""
    assert seconds(length) == length
