"""What a request brings along is committed with its answer, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.errors import InvalidChangeError
from standfast.locks.line import Entry, Granted, OfPresence, OfRun, Rules, Waiting
from standfast.locks.line_driver import LineDriver
from standfast.locks.line_records import (
    Answer,
    Enter,
    ExtraChanges,
    Leave,
    Left,
    LineKeys,
    LockSpec,
    NotGranted,
    Reap,
    WrongKind,
)
from standfast.stores import Check, Delete, Put, Wake
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from standfast.locks.line_step import Sight
    from standfast.scope import Scope
    from standfast.stores import Snapshot
    from standfast.testing import VirtualClock

ONE = LockSpec("limit", Rules(1))
FIVE = LockSpec("semaphore", Rules(5))


class Line:
    """The line of "k", and what is written beside it."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.scope = scope
        self.steps: list[Sight] = []
        self.driver = LineDriver(scope, LineKeys(scope, ("1", "", "k")), clock, set[str](), self.steps.append)

    def key(self, name: str) -> RecordKey:
        """Return where the note about an entry lies."""
        return self.scope.key("note", name)

    def note(self, name: str) -> ExtraChanges[Answer]:
        """Return what notes the answer to a request."""
        return ExtraChanges((self.key(name),), lambda answer, seen: (_put(seen, self.key(name), answer),))

    def enter(
        self, name: str, extra_changes: ExtraChanges[Answer] | None = None, spec: LockSpec = ONE, **asked: Any
    ) -> asyncio.Future[Any]:
        """Ask to enter."""
        entry = Entry(name, name, OfRun(name), Instant(0))
        return self.driver.ask(Enter(entry, extra_changes=extra_changes or self.note(name), **asked), spec)

    def leave(
        self, name: str, extra_changes: ExtraChanges[Answer] | None = None, spec: LockSpec = ONE
    ) -> asyncio.Future[Any]:
        """Ask to leave."""
        return self.driver.ask(Leave(name, extra_changes=extra_changes or self.note(name)), spec)

    async def notes(self) -> dict[str, str]:
        """Return what was noted of whom."""
        page = await self.scope.scan(*self.scope.key("note").within(), limit=1000)
        return {key.parts[-1]: record.value.decode() for key, record in page.records.items()}

    async def holders(self) -> set[str]:
        """Return who holds."""
        return {holder.entry.id for holder in (await self.driver.look()).line.holders}


def _put(seen: Snapshot, key: RecordKey, answer: object) -> Put:
    return Put(key, type(answer).__name__.encode(), seen.version(key))


def refuse(answer: Answer, _: Snapshot) -> Any:
    """Say no, whatever the answer."""
    raise LookupError(type(answer).__name__)


async def settled(*asked: asyncio.Future[Any]) -> list[Any]:
    """Return answers and exceptions."""
    return await asyncio.gather(*asked, return_exceptions=True)


@pytest.fixture
def line(scope: Scope, clock: VirtualClock) -> Line:
    """A line that nobody is in."""
    return Line(scope, clock)


async def test_each_answer_is_noted_with_its_step(line: Line) -> None:
    """The first holds, the second waits, the first leaves: each note says so, and each is one commit."""
    await line.enter("a")
    assert await line.notes() == {"a": "Granted"}
    await line.enter("b")
    assert await line.notes() == {"a": "Granted", "b": "Waiting"}
    await line.leave("a")
    assert await line.notes() == {"a": "Left", "b": "Waiting"}
    assert len(line.steps) == 3


async def test_of_many_who_enter_those_who_hold_are_noted_and_no_others(line: Line) -> None:
    """Fifty want one of five permits at once: five records, for the five who hold."""

    def note(name: str) -> ExtraChanges[Answer]:
        def decide(answer: Answer, seen: Snapshot) -> Any:
            return (_put(seen, line.key(name), answer),) if isinstance(answer, Granted) else ()

        return ExtraChanges((line.key(name),), decide)

    asked = [line.enter(f"{n}", note(f"{n}"), LockSpec("semaphore", Rules(5)), waits=False) for n in range(50)]
    answers = [each.answer for each in await asyncio.gather(*asked)]

    assert sum(isinstance(answer, Granted) for answer in answers) == 5
    assert (await line.notes()).keys() == await line.holders()


async def test_many_with_a_few_records_each_share_their_commits(line: Line) -> None:
    """A hundred starts with six records each take a tenth of the steps, or thereabouts."""

    def start(name: str) -> ExtraChanges[Answer]:
        keys = tuple(line.scope.key("note", f"{name}.{n}") for n in range(6))
        return ExtraChanges(keys, lambda answer, _: [Put(key, type(answer).__name__.encode()) for key in keys])

    await asyncio.gather(*(line.enter(f"{n}", start(f"{n}"), FIVE) for n in range(100)))

    assert len(await line.notes()) == 600
    assert len(line.steps) <= 15


async def test_a_step_that_needs_too_many_keys_is_taken_in_parts(line: Line, clock: VirtualClock) -> None:
    """A crowd falls, others move up, and many enter with their records at once: all of it happens, in order."""
    crowd, six = LockSpec("semaphore", Rules(16)), [f"{n}" for n in range(6)]
    for n in range(24):
        entry = Entry(f"old-{n}", f"old-{n}", OfRun(f"old-{n}"), Instant(0), max_hold=5)
        await line.driver.ask(Enter(entry), crowd)
    clock.advance(5)

    def start(name: str) -> ExtraChanges[Answer]:
        keys = tuple(line.key(f"{name}.{part}") for part in six)
        return ExtraChanges(keys, lambda *_: tuple(Put(key, b"") for key in keys))

    await asyncio.gather(*(line.enter(f"{n}", start(f"{n}"), crowd) for n in range(9)))

    assert len(await line.notes()) == 54
    assert await line.holders() == {f"old-{n}" for n in range(16, 24)} | {f"{n}" for n in range(8)}


async def test_an_exception_undoes_its_request_alone(line: Line) -> None:
    """The one in the middle says no: it is not in the line, the others are, and nothing of theirs is lost."""
    asked = line.enter("a"), line.enter("b", ExtraChanges((), refuse)), line.enter("c")
    first, second, third = await settled(*asked)

    assert isinstance(first.answer, Granted)
    assert isinstance(second, LookupError)
    assert third.answer == Waiting(0, 0)
    assert await line.notes() == {"a": "Granted", "c": "Waiting"}
    assert len(line.steps) == 1


async def test_one_who_says_no_leaves_nothing_behind(line: Line) -> None:
    """Alone in the line, on the short way and on the long one: there is no line afterwards."""
    for ask in (line.driver.do, line.driver.ask):
        with pytest.raises(LookupError, match="Granted"):
            await ask(Enter(Entry("a", "a", OfRun("a"), Instant(0)), extra_changes=ExtraChanges((), refuse)), ONE)
    assert (await line.scope.scan(*line.scope.key("line").within(), limit=10)).records == {}


async def test_one_who_may_not_leave_still_holds(line: Line) -> None:
    """It says no to its leaving: the next in line goes on waiting."""
    await line.enter("a")
    await line.enter("b")
    with pytest.raises(LookupError, match="Left"):
        await line.leave("a", ExtraChanges((), refuse))
    assert await line.holders() == {"a"}


async def test_everybody_may_say_no(line: Line) -> None:
    """All of a step do: nothing is committed."""
    asked = [line.enter(f"{n}", ExtraChanges((), refuse)) for n in range(5)]
    problems = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(each) for each in problems] == ["Granted"] * 5
    assert await line.holders() == set()


async def test_one_who_is_refused_can_note_it(line: Line) -> None:
    """Those who do not want to wait, and those who take the line for another kind, write what they were told."""
    await line.enter("a")
    refused, wrong = line.enter("b", waits=False), line.enter("c", spec=FIVE)
    assert isinstance((await refused).answer, NotGranted)
    assert isinstance((await wrong).answer, WrongKind)
    assert await line.notes() == {"a": "Granted", "b": "NotGranted", "c": "WrongKind"}
    assert await line.holders() == {"a"}


async def test_those_who_change_the_same_record_take_turns(line: Line) -> None:
    """Twenty add one to the same number, at once and in order: none is lost."""
    total = line.key("total")

    def add(_: Answer, seen: Snapshot) -> Any:
        record = seen.get(total)
        count = 0 if record is None else int(record.value)
        return (Put(total, str(count + 1).encode(), seen.version(total)),)

    answered = await asyncio.gather(*(line.enter(f"{n}", ExtraChanges((total,), add)) for n in range(20)))

    assert await line.notes() == {"total": "20"}
    assert [each.answer.ticket for each in answered[1:]] == list(range(19))


async def test_those_who_only_check_a_record_share_a_step(line: Line) -> None:
    """A guard that all of them have does not keep them apart."""
    guard = line.key("guard")
    await line.scope.commit(Put(guard, b"1"))

    def check(_: Answer, seen: Snapshot) -> Any:
        return (Check(guard, seen.version(guard)),)

    await asyncio.gather(*(line.enter(f"{n}", ExtraChanges((guard,), check)) for n in range(10)))
    assert len(line.steps) == 1


async def test_a_holder_may_guard_by_the_grant_that_it_gives_back(line: Line) -> None:
    """The step guards it at the same version; another version is refused, and nothing happens."""
    fence = (await line.enter("a")).sight.fences["a"]
    grant = line.driver.keys.grant(0)
    with pytest.raises(InvalidChangeError):
        await line.leave("a", ExtraChanges((grant,), lambda *_: (Check(grant, fence + 1),)))
    await line.leave("a", ExtraChanges((grant,), lambda *_: (Check(grant, fence),)))
    assert await line.holders() == set()


@pytest.mark.parametrize("reach", [lambda line: line.key("other"), lambda line: line.driver.keys.head])
async def test_what_reaches_too_far_is_refused_alone(line: Line, reach: Callable[[Line], RecordKey]) -> None:
    """A key that it did not name, or one of the line: the others of the step go on."""
    await line.enter("a")
    key = reach(line)
    keys = (key,) if key == line.driver.keys.head else ()
    bad = ExtraChanges[Answer](keys, lambda _, seen: (Put(key, b"", seen.version(key)),))
    problem, good = await settled(line.enter("b", bad), line.enter("c"))

    assert isinstance(problem, InvalidChangeError)
    assert good.answer == Waiting(0, 0)


async def test_wakes_are_sent_along(scope: Scope, clock: VirtualClock) -> None:
    """Once the commit is durable."""
    wire = Wire()
    line = Line(scope, clock)
    line.driver = LineDriver(type(scope)(wire.around(scope.store)), line.driver.keys, clock, set[str](), lambda _: None)
    there = Wake(line.key("there"), line.key("here"))
    await line.enter("a", ExtraChanges((), lambda *_: (), wakes=lambda: (there,)))
    assert wire.wakes == [there]


async def test_a_look_can_bring_something_along(line: Line) -> None:
    """A step that asks for nothing commits what it finds, together with what it brings."""
    await line.enter("a")
    await line.driver.ask(Reap(extra_changes=line.note("poke")), ONE)
    assert (await line.notes())["poke"] == "Advanced"


async def test_many_leave_with_their_results(line: Line) -> None:
    """Those who hold leave at once, each with a record; those who wait move up, and nobody is left out."""
    await asyncio.gather(*(line.enter(f"{n:02}", spec=FIVE) for n in range(40)))
    for start in range(0, 40, 5):
        answered = await asyncio.gather(*(line.leave(f"{n:02}", spec=FIVE) for n in range(start, start + 5)))
        assert all(each.answer == Left(was_holding=True, was_waiting=False) for each in answered)
    assert set((await line.notes()).values()) == {"Left"}
    assert await line.holders() == set()


async def test_a_marker_comes_and_goes_with_the_wait(line: Line) -> None:
    """Asking again renews it; leaving takes it away, also in the same step."""
    marker = line.key("marker")
    await line.enter("a")
    for _ in range(2):
        await line.enter("b", marker=marker)
        assert "marker" in await line.notes()
    leave = Leave("b", marker=marker)
    await asyncio.gather(line.enter("b", marker=marker), line.driver.ask(leave, ONE))
    assert "marker" not in await line.notes()


async def test_a_process_brings_its_changes_along_as_well(line: Line) -> None:
    """An entry of a process takes the short way in and out, with what it brings."""
    entry = Entry("p", "p", OfPresence("p.1"), Instant(0))
    await line.driver.do(Enter(entry, extra_changes=line.note("p")), ONE)
    assert await line.notes() == {"p": "Granted"}
    key = line.key("p")
    end = ExtraChanges[Answer]((key,), lambda _, seen: (Delete(key, seen.version(key)),))
    await line.driver.do(Leave("p", extra_changes=end), ONE)
    assert await line.notes() == {}
