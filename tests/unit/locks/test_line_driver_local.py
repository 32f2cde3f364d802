"""What a process sees of a line is told to those who wait and hold here, and only what it can tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.locks.heartbeat import Presence, this_process
from standfast.locks.line import Entry, Holder, Line, OfPresence, Rules, Waiter
from standfast.locks.line_driver import LocalLine, LocalWaiter
from standfast.locks.line_records import LineKeys, LockSpec
from standfast.locks.line_step import Sight
from standfast.scope import Scope, address_of

if TYPE_CHECKING:
    from standfast.testing import VirtualClock

GRANTED = Instant(500)
KNOWN = Instant(1_000)
ENTRY = Entry("a", "a", OfPresence("p.1"), Instant(1))
HOLDING = Line(Rules(1), (Holder(ENTRY, 0, GRANTED),))
WAITING = Line(Rules(1), (), (Waiter(ENTRY, 0),), 1)
GONE = Line(Rules(1), (), (), 1)


class Tenure:
    """A hold that is known of since an instant."""

    granted_at, known_at, called_from = GRANTED, KNOWN, "here.py:1"

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.reasons: list[str] = []

    def lose(self, reason: str) -> None:
        """Hear that it is over."""
        self.reasons.append(reason)


@pytest.fixture
def line(scope: Scope, clock: VirtualClock) -> LocalLine:
    """A line in which this process takes part."""
    return LocalLine(scope, LineKeys(scope, address_of("k")), clock)


@pytest.fixture
def tenure(line: LocalLine, scope: Scope, clock: VirtualClock) -> Tenure:
    """A hold of this process in it."""
    tenure = Tenure(Presence(scope, 1, this_process(10, ""), clock))
    line.holds["a"] = tenure
    return tenure


def sight(line: Line, asked_at: int) -> Sight:
    """Return what was seen by somebody who asked at an instant."""
    return Sight(line, "life", {}, Instant(asked_at), Instant(asked_at))


def test_a_hold_that_is_gone_is_lost(line: LocalLine, tenure: Tenure) -> None:
    """It was asked for after the hold was known of, so it shows what became of it."""
    line._saw(sight(GONE, KNOWN))
    assert len(tenure.reasons) == 1


def test_a_late_answer_takes_nothing_away(line: LocalLine, tenure: Tenure) -> None:
    """A step from before the grant is answered after it was learnt otherwise: it shows the entry still waiting."""
    line._saw(sight(WAITING, KNOWN - 1))
    assert tenure.reasons == []


def test_a_hold_that_is_there_stays(line: LocalLine, tenure: Tenure) -> None:
    """Whenever it is looked at."""
    line._saw(sight(HOLDING, KNOWN + 1))
    assert tenure.reasons == []


def test_a_grant_of_another_time_is_another_hold(line: LocalLine, tenure: Tenure) -> None:
    """It was lost and got in again meanwhile: what this block held is gone."""
    line._saw(sight(Line(Rules(1), (Holder(ENTRY, 0, Instant(GRANTED + 1)),)), KNOWN + 1))
    assert len(tenure.reasons) == 1


async def test_one_turned_out_before_it_took_note_of_its_grant_is_gone(
    line: LocalLine, scope: Scope, clock: VirtualClock
) -> None:
    """It was granted and turned out in one breath: nobody here may take it for a holder."""
    wait = LocalWaiter(
        ENTRY,
        Presence(scope, 1, this_process(10, ""), clock),
        LockSpec("mutex", Rules(1)),
        asyncio.get_running_loop(),
    )
    line.waits["a"] = wait
    line.note_ticket(wait, 0)

    line._saw(Sight(HOLDING, "life", {"a": 7}, KNOWN, KNOWN))
    assert not wait.is_gone
    line._saw(sight(GONE, KNOWN + 1))

    assert wait.turn.done()
    assert wait.is_gone
