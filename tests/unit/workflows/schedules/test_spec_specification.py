"""Schedules as users write them: what makes no sense is refused, with the fix."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from standfast.errors import DeclarationError, MissingExtraError
from standfast.workflows.schedules.spec import SPECS, Schedule, ScheduleSpec, check_spec, new_state
from tests.unit.workflows.schedules.scene import NOON

NOTHING = Raw(b"null")


@pytest.mark.parametrize(
    ("options", "what", "advice"),
    [
        ({}, "time", "either cron="),
        ({"cron": "0 9 * * *", "every": 60}, "time", "either cron="),
        ({"cron": "0 25 * * *"}, "cron", "bad hour"),
        ({"cron": "0 9 * *"}, "cron", "wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "cron", "bad day-of-month"),
        ({"cron": "* * */20 * 1L"}, "cron", "no day within fifty years"),
        ({"cron": "9" * 5_000}, "cron", "five fields"),
        ({"cron": 9}, "cron", "five fields"),
        ({"cron": "0 9 * * *", "zone": "Europe/Berln"}, "zone", "Europe/Berlin"),
        ({"cron": "0 9 * * *", "zone": 1}, "zone", "name of a time zone"),
        ({"every": 60, "zone": "UTC"}, "zone", "goes with cron"),
        ({"every": 0.999}, "every", "shorter than 1 second"),
        ({"every": "five"}, "every", "5 seconds"),
        ({"every": 90_000}, "every", "milliseconds"),
        ({"every": 60, "overlap": "cancel"}, "overlap", "skip, queue, cancel_running, allow"),
        ({"every": 60, "backfill": 1}, "backfill", "True or False"),
        ({"every": 60, "most_backfilled": 5}, "most_backfilled", "backfill=True"),
        ({"every": 60, "backfill": True, "most_backfilled": 0}, "most_backfilled", "from 1 to"),
        ({"every": 60, "jitter": 60}, "jitter", "shorter than the 60 s"),
        ({"cron": "0,10 9 * * *", "jitter": "10 minutes"}, "jitter", "shorter than the 600 s"),
        ({"every": 60, "jitter": -1}, "jitter", "negative"),
        ({"every": 60, "timezone": "UTC"}, "option", "zone"),
    ],
)
def test_a_mistake_is_named_with_the_fix(options: dict[str, Any], what: str, advice: str) -> None:
    """The error says what was given, for what, and what would be right."""
    with pytest.raises(DeclarationError, match=advice) as caught:
        Schedule("report", id="daily", **options)
    assert caught.value.what == f"the {what} of a schedule"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, None])
def test_an_id_is_short_printable_text(name: Any) -> None:
    """What could not be a part of a run's id is refused."""
    with pytest.raises(DeclarationError, match="printable text of 1 to 200 bytes"):
        Schedule("report", id=name, every=60)


def test_a_schedule_keeps_what_the_workflow_is_started_with() -> None:
    """Arguments are kept as they are until the engine packs them; options are checked at once."""
    schedule = Schedule("report", "eu", id="daily", kwargs={"limit": 3}, every=timedelta(minutes=5), paused=True)
    assert (schedule.args, schedule.kwargs, schedule.paused) == (("eu",), {"limit": 3}, True)
    assert schedule.spec("report", Raw(b"[1]")) == ScheduleSpec("report", Raw(b"[1]"), every=300.0)
    assert repr(schedule) == "<schedule daily: every 300 s>"


def test_only_what_differs_from_the_default_is_stored() -> None:
    """The stored form is fixed: later versions read it, and what they add is optional."""
    spec = check_spec("report", Raw(b'{"a":["eu"]}'), cron="0  9 * * mon-fri", zone="Europe/Berlin", jitter="1 minute")
    stored = b'"workflow":"report","input":{"a":["eu"]},"cron":"0 9 * * mon-fri","zone":"Europe/Berlin","jitter":60.0'
    assert SPECS.encode(spec) == b"1:{" + stored + b"}"
    assert SPECS.decode(SPECS.encode(spec)) == spec


def test_a_stored_schedule_in_an_unknown_zone_is_read_but_not_worked_out() -> None:
    """It can be listed and deleted on a machine without its zone; its ticks cannot be found there."""
    spec = SPECS.decode(b'1:{"workflow":"w","input":null,"cron":"0 9 * * *","zone":"Mars/Olympus"}')
    with pytest.raises(MissingExtraError, match="Mars/Olympus"):
        new_state(spec, NOON)


def test_a_period_needs_neither_the_cron_library_nor_time_zones() -> None:
    """Both are imported when a cron expression is there."""
    code = (
        "import sys; from standfast.workflows.schedules.spec import Schedule;"
        "Schedule('w', id='s', every=60); print({'cronsim', 'zoneinfo'} & sys.modules.keys())"
    )
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True) == "set()\n"
