"""A waiter of a counted line is told by a notification that shows its grant, if that is of this very wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.locks.heartbeat import Presence, this_process
from standfast.locks.line import Entry, Holder, Line, OfPresence, Rules, Waiter
from standfast.locks.line_driver import LocalLine, LocalWaiter
from standfast.locks.line_records import GRANTS, HEADS, Grant, Head, LineKeys, LockSpec
from standfast.locks.line_step import Sight
from standfast.scope import address_of
from standfast.stores import Record

if TYPE_CHECKING:
    from standfast.scope import Scope
    from standfast.testing import VirtualClock

GRANTED = Instant(500)
ENTRY = Entry("a", "a", OfPresence("p.1"), Instant(1))
HEAD = Head("life", "mutex", Rules(1), (Holder(ENTRY, 0, GRANTED),), 4, 4)
GRANT = Grant("a", "a", GRANTED)
FENCE = 77


@pytest.fixture
async def line(scope: Scope, clock: VirtualClock) -> LocalLine:
    """A line in which an entry of this process waits, with the ticket 3."""
    line = LocalLine(scope, LineKeys(scope, address_of("k")), clock)
    presence = Presence(scope, 1, this_process(10, ""), clock)
    line.waits["a"] = LocalWaiter(ENTRY, presence, LockSpec("mutex", Rules(1)), asyncio.get_running_loop())
    line.note_ticket(line.waits["a"], 3)
    line._saw(Sight(Line(Rules(1), (), (Waiter(ENTRY, 3),), 4), "life", {}, Instant(1), Instant(1)))
    return line


def show(line: LocalLine, head: Head | None = HEAD, grant: Grant = GRANT) -> bool:
    """Show the head of a line and a grant; return True if the line need not be read."""
    keys = line.driver.keys
    if head is not None:
        line.take_head(Record(keys.head, HEADS.encode_own(head), FENCE))
    return line.take_grant(Record(keys.grant(0), GRANTS.encode_own(grant), FENCE))


async def test_a_grant_that_is_shown_is_believed(line: LocalLine) -> None:
    """Its version is the fence, and nothing is read."""
    assert show(line)
    turn = line.waits["a"].turn.result()
    assert turn is not None
    assert (turn.fence, turn.holder, turn.at) == (FENCE, HEAD.holders[0], GRANTED)


async def test_who_comes_next_is_read_while_it_holds(line: LocalLine) -> None:
    """It hands over to that one in one commit."""
    assert not show(line, structs.replace(HEAD, next_ticket=5))
    assert line.waits["a"].turn.done()


@pytest.mark.parametrize(
    "head",
    [
        None,
        structs.replace(HEAD, life="another"),
        structs.replace(HEAD, front=3),
        structs.replace(HEAD, holders=()),
        structs.replace(HEAD, holders=(Holder(ENTRY, 0, Instant(499)),)),
        structs.replace(HEAD, holders=(Holder(structs.replace(ENTRY, anchor=OfPresence("p.2")), 0, GRANTED),)),
    ],
    ids=["no head", "another life", "not its ticket", "not a holder", "of another time", "by another presence"],
)
async def test_what_may_be_old_is_looked_at(line: LocalLine, head: Head | None) -> None:
    """It may have been granted once and lost that, and wait again."""
    assert not show(line, head)
    assert not line.waits["a"].turn.done()


async def test_a_notice_that_overtakes_the_answer_is_looked_at(line: LocalLine) -> None:
    """Its ticket is not known yet."""
    line.waits["a"].ticket = None
    assert not show(line)
    assert not line.waits["a"].turn.done()


async def test_a_grant_of_one_that_does_not_wait_here_is_nothing_to_read(line: LocalLine) -> None:
    """It may have come twice."""
    assert show(line, grant=Grant("b", "b", GRANTED))
    assert not line.waits["a"].turn.done()


async def test_a_grant_is_not_read_where_no_entry_waits(scope: Scope, clock: VirtualClock) -> None:
    """The one that leaves a mutex has made it for another process."""
    line = LocalLine(scope, LineKeys(scope, address_of("k")), clock)

    assert line.take_grant(Record(line.driver.keys.grant(0), b"%016d9:unread" % 1, FENCE))
