"""Cron in a time zone: the clock on the wall decides, also on the days when it is put forward or back."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import Instant
from standfast.errors import DeclarationError, MissingExtraError
from standfast.workflows.schedules.cron import check_cron, ticks, zone_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
CRONS = ["30 2 * * *", "*/30 2 * * *", "0 */2 * * *", "*/7 * * * *", "15,45 1-3 * * sun", "0 0 29 2 *", "20 30 1 * * *"]


def instant(text: str) -> Instant:
    """Return the instant of a moment written with its offset."""
    return Instant((datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1))


def moment(at: Instant, zone: str) -> datetime:
    """Return what the clock on the wall shows, with its offset."""
    return (EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))


def shown(cron: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next ticks as the clock on the wall shows them."""
    return [f"{moment(at, zone):%d %H:%M%z}" for at in islice(ticks(cron, zone, instant(after)), count)]


@pytest.mark.parametrize(
    ("zone", "before", "cron", "expected"),
    [
        (BERLIN, "2024-03-31T00:10+01:00", "30 2 * * *", ["31 03:00+0200", "01 02:30+0200"]),
        (BERLIN, "2024-03-31T00:10+01:00", "0,30 2,3 * * *", ["31 03:00+0200", "31 03:30+0200", "01 02:00+0200"]),
        (BERLIN, "2024-03-31T00:10+01:00", "0 30 2 * * *", ["31 03:00+0200", "01 02:30+0200"]),
        (NEW_YORK, "2024-03-10T00:10-05:00", "30 2 * * *", ["10 03:00-0400", "11 02:30-0400"]),
        (LORD_HOWE, "2024-10-06T00:10+10:30", "15 2 * * *", ["06 02:30+1100", "07 02:15+1100"]),
        (LORD_HOWE, "2024-10-06T00:10+10:30", "45 2 * * *", ["06 02:45+1100", "07 02:45+1100"]),
        ("Africa/Cairo", "2024-04-25T12:00+02:00", "30 0 * * *", ["26 01:00+0300", "27 00:30+0300"]),
    ],
)
def test_a_named_time_that_is_skipped_runs_once_when_the_clock_jumps(
    zone: str, before: str, cron: str, expected: list[str]
) -> None:
    """No named time is lost when clocks go forward; several that are skipped run together once."""
    assert shown(cron, zone, before, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "before", "cron", "expected"),
    [
        (BERLIN, "2024-10-27T00:10+02:00", "30 2 * * *", ["27 02:30+0200", "28 02:30+0100"]),
        (BERLIN, "2024-10-27T02:40+02:00", "30 2 * * *", ["28 02:30+0100"]),
        (BERLIN, "2024-10-27T02:10+01:00", "30 2 * * *", ["28 02:30+0100"]),
        (BERLIN, "2024-10-27T00:10+02:00", "*/30 2 * * *", ["27 02:00+0200", "27 02:30+0200", "28 02:00+0100"]),
        (NEW_YORK, "2024-11-03T00:10-04:00", "30 1 * * *", ["03 01:30-0400", "04 01:30-0500"]),
        (LORD_HOWE, "2024-04-07T00:10+11:00", "45 1 * * *", ["07 01:45+1100", "08 01:45+1030"]),
    ],
)
def test_a_named_time_that_occurs_twice_runs_the_first_time(
    zone: str, before: str, cron: str, expected: list[str]
) -> None:
    """When clocks go back, a named time runs once, wherever in the repeated hour one asks."""
    assert shown(cron, zone, before, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "before", "cron", "expected"),
    [
        (BERLIN, "2024-03-31T01:10+01:00", "*/30 * * * *", ["31 01:30+0100", "31 03:00+0200", "31 03:30+0200"]),
        (BERLIN, "2024-10-27T02:10+02:00", "*/30 * * * *", ["27 02:30+0200", "27 02:00+0100", "27 02:30+0100"]),
        (BERLIN, "2024-03-31T00:10+01:00", "0 */2 * * *", ["31 04:00+0200", "31 06:00+0200"]),
        (BERLIN, "2024-10-27T00:10+02:00", "0 */2 * * *", ["27 02:00+0200", "27 02:00+0100", "27 04:00+0100"]),
        (NEW_YORK, "2024-03-10T00:10-05:00", "0 * * * *", ["10 01:00-0500", "10 03:00-0400", "10 04:00-0400"]),
        (NEW_YORK, "2024-11-03T00:10-04:00", "0 * * * *", ["03 01:00-0400", "03 01:00-0500", "03 02:00-0500"]),
        (LORD_HOWE, "2024-10-06T01:10+10:30", "*/30 * * * *", ["06 01:30+1030", "06 02:30+1100", "06 03:00+1100"]),
        (LORD_HOWE, "2024-04-07T01:10+11:00", "*/30 * * * *", ["07 01:30+1100", "07 01:30+1030", "07 02:00+1030"]),
        (BERLIN, "2026-10-25T02:40+02:00", "30 */24,2 25 10 *", ["25 02:30+0100", "25 00:30+0200"]),
        (LORD_HOWE, "2024-04-07T00:10+11:00", "0 */2 * * *", ["07 02:00+1030", "07 04:00+1030"]),
    ],
)
def test_with_any_hour_the_ticks_follow_the_clock_face(zone: str, before: str, cron: str, expected: list[str]) -> None:
    """A time that is skipped is left out, one that occurs twice runs both times."""
    assert shown(cron, zone, before, len(expected)) == expected


def test_a_day_that_a_zone_never_had_is_made_up_for_when_it_was_jumped_over() -> None:
    """Samoa went from the 29th to the 31st of December 2011: what was named for the 30th runs as the 31st begins."""
    assert shown("0 9 30 * *", "Pacific/Apia", "2011-12-29T12:00-10:00", 1) == ["31 00:00+1400"]


@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, "UTC", "Asia/Kathmandu"]),
    start=st.integers(instant("2020-01-01T00:00Z"), instant("2030-01-01T00:00Z")),
    skipped=st.integers(1, 10),
)
def test_where_one_begins_to_ask_makes_no_difference(cron: str, zone: str, start: int, skipped: int) -> None:
    """Ticks only go forward, and asking from one of them on gives those that follow it."""
    found = list(islice(ticks(cron, zone, Instant(start)), 20))
    assert all(earlier < later for earlier, later in pairwise([Instant(start), *found]))
    assert list(islice(ticks(cron, zone, found[skipped]), 19 - skipped)) == found[skipped + 1 :]
    assert next(ticks(cron, zone, Instant(found[skipped] - 1))) == found[skipped]


@given(cron=st.sampled_from(CRONS), start=st.integers(0, instant("2100-01-01T00:00Z")))
def test_without_changes_of_the_clock_the_library_decides(cron: str, start: int) -> None:
    """In UTC the ticks are those of cronsim."""
    theirs = islice(CronSim(cron, moment(Instant(start), "UTC").astimezone(UTC)), 10)
    assert [moment(at, "UTC") for at in islice(ticks(cron, "UTC", Instant(start)), 10)] == list(theirs)


@given(st.text(max_size=30) | st.text("0123456789*/-,#LW @monfri", max_size=30))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    """Nothing but the one error comes out of a text that is no cron expression."""
    with suppress(DeclarationError):
        assert len(check_cron(text).split()) in (5, 6)


def test_nicknames_stand_for_expressions() -> None:
    """``@daily`` and the like are stored as what they mean."""
    assert [check_cron(name) for name in ("@hourly", " @Daily ", "@weekly")] == ["0 * * * *", "0 0 * * *", "0 0 * * 0"]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "", "../../etc/passwd", "/etc/localtime", "a\0b"])
def test_a_zone_that_this_machine_does_not_know_is_named(zone: str) -> None:
    """What is no time zone gives its own error, and no path leads out of the folder of zones."""
    with pytest.raises(MissingExtraError, match="tzdata"):
        zone_of(zone)
