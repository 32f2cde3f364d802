"""What a process keeps in mind of a line is enough to hand over, and is not believed where it is not so any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.locks.line import Entry, OfRun, Rules
from standfast.locks.line_driver import LineDriver
from standfast.locks.line_memory import KNOWN_FOR
from standfast.locks.line_records import WINDOW, Enter, ExtraChanges, Leave, LineKeys, LockSpec
from standfast.stores import Put

if TYPE_CHECKING:
    from standfast.locks.line_records import Answer
    from standfast.locks.line_step import Answered
    from standfast.scope import Scope
    from standfast.testing import VirtualClock

ONE = LockSpec("limit", Rules(1))


class Process:
    """One process that has to do with the line of "k"."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.scope = scope
        self.driver = LineDriver(scope, LineKeys(scope, ("1", "", "k")), clock, set[str](), lambda _: None)

    async def enter(self, *names: str) -> None:
        """Let runs join, one after the other."""
        for name in names:
            await self.driver.do(Enter(Entry(name, name, OfRun(name), Instant(0)), is_new=True), ONE)

    async def leave_known(self, name: str) -> Answered | None:
        """Hand the place of a run on without a look, and note that."""
        note = Put(self.scope.key("note", name), b"left")
        extra_changes: ExtraChanges[Answer] = ExtraChanges((), lambda *_: (), guarded=(note,))
        return await self.driver.leave_known(Leave(name, 0, extra_changes=extra_changes), ONE)

    async def leave(self, name: str) -> None:
        """Leave as ever."""
        await self.driver.do(Leave(name), ONE)

    async def notes(self) -> list[str]:
        """Return who has handed its place on without a look."""
        page = await self.scope.scan(*self.scope.key("note").within(), limit=100)
        return [key.parts[-1] for key in page.records]

    async def holder(self) -> str:
        """Return who holds."""
        return (await self.driver.look()).line.holders[0].entry.id


@pytest.fixture
def here(scope: Scope, clock: VirtualClock) -> Process:
    """This process."""
    return Process(scope, clock)


@pytest.fixture
def there(scope: Scope, clock: VirtualClock) -> Process:
    """Another one."""
    return Process(scope, clock)


async def test_a_place_is_handed_on_without_a_look(here: Process) -> None:
    """What is brought along is committed with it, and the next one is told."""
    await here.enter("a", "b", "c")

    assert await here.leave_known("a") is not None
    assert await here.leave_known("b") is not None

    assert (await here.holder(), await here.notes()) == ("c", ["a", "b"])
    assert len((await here.scope.scan(*here.scope.key("ready").within(), limit=9)).records) == 2


async def test_the_last_one_looks(here: Process) -> None:
    """That nobody waits cannot be known."""
    await here.enter("a", "b")
    await here.leave_known("a")

    assert await here.leave_known("b") is None


async def test_a_process_that_was_faster_is_found_out(here: Process, there: Process) -> None:
    """Nothing is committed, and the general way finds the line as it is."""
    await here.enter("a", "b", "c")
    await there.leave("b")

    await there.leave("a")

    assert await here.leave_known("a") is None
    assert await here.notes() == []
    assert await here.holder() == "c"


async def test_waiters_that_were_not_seen_are_not_passed(here: Process, there: Process) -> None:
    """Tickets of others beyond what was read are unknown, and no gaps."""
    others = [f"other {number}" for number in range(WINDOW + 1)]
    await here.enter("a", "b")
    await there.enter(*others)
    await here.enter("c")
    order = ["a", "b", *others, "c"]

    for name in order[:-1]:
        assert await here.holder() == name
        if await here.leave_known(name) is None:
            await here.leave(name)

    assert await here.holder() == "c"
    assert len(await here.notes()) > WINDOW / 2


async def test_a_line_that_was_seen_long_ago_is_looked_at(here: Process, clock: VirtualClock) -> None:
    """The store's time is not known well enough any more."""
    await here.enter("a", "b", "c")

    clock.advance(KNOWN_FOR + 0.1)

    assert await here.leave_known("a") is None
