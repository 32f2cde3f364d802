"""The line of a limit in a store: a few holders in its head, the others counted there, each in a record of its own."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import standfast as sf
from standfast.clock import Instant
from standfast.codec import Codec
from standfast.errors import FormatTooNewError
from standfast.events import NO_HOOKS
from standfast.ids import new_id
from standfast.locks.acquire import AcquireRequest
from standfast.locks.entry import Answer, EnterRequest, ExtraChanges, LeaveRequest, LineEntries, RunGrant
from standfast.locks.heartbeat import remove
from standfast.locks.inspect import explain
from standfast.locks.line import OUT_OF_SIGHT, Entry, Granted, OfRun, Rules, Waiting
from standfast.locks.line_records import (
    FEW_HOLDERS,
    HEADS,
    HELD,
    LIMIT,
    Head,
    LineKeys,
    LockSpec,
    head_value,
)
from standfast.locks.locks import Holding
from standfast.locks.registry import Lines
from standfast.locks.survey import read_lines
from standfast.stores.protocol import Conflict, Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.scope import Scope
    from standfast.testing import VirtualClock

ADDRESS = (LIMIT, "work", "type")


def spec(permits: int) -> LockSpec:
    """Return the line of a limit."""
    return LockSpec(LIMIT, Rules(permits))


class Ground:
    """A limit in a store, and two processes that use it."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.scope = scope
        self.processes = [Lines(scope, clock, NO_HOOKS, None) for _ in range(2)]
        self.lines = [LineEntries(each) for each in self.processes]
        self.keys = LineKeys(scope, ADDRESS)

    async def enter(self, name: str, permits: int, *, process: int = 0, ticket: int | None = None) -> Granted | Waiting:
        """Let a run enter."""
        entry = Entry(name, name, OfRun(name), Instant(0))
        request = EnterRequest(ADDRESS, spec(permits), entry, ticket=ticket)
        answer = (await self.lines[process].enter(request, is_new=ticket is None)).answer
        assert isinstance(answer, Granted | Waiting)
        return answer

    async def leave(self, name: str, *, process: int = 0) -> None:
        """Let a run leave."""
        await self.lines[process].leave(LeaveRequest(ADDRESS, spec(1), name))

    async def head(self) -> Head | None:
        """Return the head of the line."""
        record = (await self.scope.read(self.keys.head)).get(self.keys.head)
        return None if record is None else HEADS.decode(record.value)

    async def counted(self) -> set[str]:
        """Return the runs that have a record of their own."""
        page = await self.scope.scan(*self.keys.all_held(), limit=1_000)
        return {HELD.decode(each.value).entry.id for each in page.records.values()}


@pytest.fixture
async def ground(scope: Scope, clock: VirtualClock) -> AsyncIterator[Ground]:
    """Two processes at one store."""
    ground = Ground(scope, clock)
    yield ground
    for each in ground.processes:
        await each.aclose()


async def test_holders_beyond_the_first_few_are_counted(ground: Ground) -> None:
    """The head does not grow, the others have a record each, and all of them count."""
    for number in range(FEW_HOLDERS + 5):
        assert isinstance(await ground.enter(f"r{number}", FEW_HOLDERS + 5), Granted)
    head = await ground.head()
    assert head is not None
    assert (len(head.holders), head.unseen) == (FEW_HOLDERS, 5)
    assert await ground.counted() == {f"r{number}" for number in range(FEW_HOLDERS, FEW_HOLDERS + 5)}
    assert isinstance(await ground.enter("one more", FEW_HOLDERS + 5, process=1), Waiting)


async def test_the_place_of_one_that_is_counted_goes_to_the_first_that_waits(ground: Ground) -> None:
    """In the same commit: its record is deleted, that of the next one put, and the count stays."""
    for number in range(FEW_HOLDERS + 1):
        await ground.enter(f"r{number}", FEW_HOLDERS + 1)
    waiting = await ground.enter("next", FEW_HOLDERS + 1, process=1)
    await ground.leave(f"r{FEW_HOLDERS}")
    found = await ground.lines[1].find(ADDRESS, "next")
    assert isinstance(found, RunGrant)
    assert (found.slot, found.grant) == (OUT_OF_SIGHT, ground.keys.held("next"))
    assert await ground.counted() == {"next"}
    assert isinstance(waiting, Waiting)
    assert isinstance(await ground.enter("next", 1, process=1, ticket=waiting.ticket), Granted)


async def test_asking_again_keeps_the_grant_of_one_that_is_counted(ground: Ground) -> None:
    """And its fence: its record is not written again."""
    for number in range(FEW_HOLDERS + 1):
        await ground.enter(f"r{number}", 99)
    before = await ground.lines[0].find(ADDRESS, f"r{FEW_HOLDERS}")
    assert isinstance(await ground.enter(f"r{FEW_HOLDERS}", 99, process=1), Granted)
    assert await ground.lines[1].find(ADDRESS, f"r{FEW_HOLDERS}") == before


async def test_a_line_is_gone_when_the_last_has_left_whoever_was_counted(ground: Ground) -> None:
    """No record of it is left, in whatever order they leave."""
    names = [f"r{number}" for number in range(2 * FEW_HOLDERS)]
    for name in names:
        await ground.enter(name, 99)
    random.Random(1).shuffle(names)
    for number, name in enumerate(names):
        await ground.leave(name, process=number % 2)
    assert await ground.head() is None
    assert not await ground.counted()


async def test_an_operator_evicts_one_that_is_counted(ground: Ground) -> None:
    """And one that has gone already is not there."""
    for number in range(FEW_HOLDERS + 2):
        await ground.enter(f"r{number}", 99)
    assert await ground.processes[1].evict(ADDRESS, spec(99), f"r{FEW_HOLDERS}")
    assert not await ground.processes[1].evict(ADDRESS, spec(99), f"r{FEW_HOLDERS}")
    head = await ground.head()
    assert head is not None
    assert (len(head.holders), head.unseen) == (FEW_HOLDERS, 1)


async def test_fewer_permits_than_are_counted_evict_none(ground: Ground) -> None:
    """Nobody comes in until as many have left."""
    for number in range(FEW_HOLDERS + 3):
        await ground.enter(f"r{number}", 99)
    await ground.lines[0].resize(ADDRESS, spec(99), FEW_HOLDERS + 1, pinned=True)
    waiting = await ground.enter("new", 99)
    assert isinstance(waiting, Waiting)
    await ground.leave("r0")
    await ground.leave(f"r{FEW_HOLDERS + 1}")
    assert isinstance(await ground.lines[0].find(ADDRESS, "new"), Waiting)
    await ground.leave("r1")
    assert isinstance(await ground.lines[0].find(ADDRESS, "new"), RunGrant)


async def test_a_look_lists_some_and_counts_all(ground: Ground) -> None:
    """An explanation, a summary and a survey say how many hold."""
    for number in range(150):
        await ground.enter(f"r{number:03}", 150)
    await ground.enter("waits", 150)
    told = await explain(ground.scope, ADDRESS)
    assert (told.holding, len(told.holders), told.waiting) == (150, 108, 1)
    assert all(each.fence for each in told.holders)
    assert "150 holding, 1 waiting" in told.as_text()
    assert "and 42 more holding" in told.as_text()
    [line] = (await read_lines(ground.scope, LIMIT)).lines
    assert line.holders == 150


async def test_a_step_costs_the_same_however_many_hold(ground: Ground) -> None:
    """Neither the head nor the keys of a step grow with those that are counted."""
    sizes: list[int] = []
    for number in range(300):
        await ground.enter(f"r{number:03}", 1_000)
        record = (await ground.scope.read(ground.keys.head)).get(ground.keys.head)
        sizes.append(0 if record is None else len(record.value))
    assert sizes[-1] - sizes[20] <= 2  # the digits of the count


async def test_a_head_from_before_is_read_and_its_holders_stay_there(ground: Ground) -> None:
    """They are listed until they leave; new ones are counted beside them."""
    value = (
        b'1:{"life":"a.1","kind":"limit","rules":{"permits":20},"holders":['
        + b",".join(
            b'{"entry":{"id":"o%d","owner":"o%d","anchor":{"kind":"run","run":"o%d"},"entered_at":5},"slot":%d,'
            b'"granted_at":6}' % (number, number, number, number)
            for number in range(12)
        )
        + b"]}"
    )
    grants = [
        Put(ground.keys.grant(slot), b'1:{"entry":"o%d","owner":"o%d","granted_at":6}' % (slot, slot))
        for slot in range(12)
    ]
    await ground.scope.commit(Put(ground.keys.head, value), *grants)
    await ground.enter("new", 20)
    head = await ground.head()
    assert head is not None
    assert (len(head.holders), head.unseen, await ground.counted()) == (12, 1, {"new"})
    for number in range(12):
        await ground.leave(f"o{number}", process=number % 2)
    await ground.leave("new")
    assert await ground.head() is None


async def test_a_version_that_does_not_count_refuses_the_line(ground: Ground) -> None:
    """It would forget those that are counted; a head without any is as it was."""
    before: Codec[Head] = Codec(Head, what="the head of a line")
    head = Head("a.1", LIMIT, Rules(9))
    assert before.decode(head_value(head)) == head
    for number in range(FEW_HOLDERS + 1):
        await ground.enter(f"r{number}", 99)
    record = (await ground.scope.read(ground.keys.head)).get(ground.keys.head)
    assert record is not None
    with pytest.raises(FormatTooNewError):
        before.decode(record.value)


async def test_a_step_that_has_to_look_further_still_says_what_it_has_put(ground: Ground) -> None:
    """Many move up at once, more than one step sees: the request that began it is told the versions of its changes."""
    for number in range(30):
        await ground.enter(f"r{number}", 2)
    record = (await ground.scope.read(ground.keys.head)).get(ground.keys.head)
    assert record is not None
    head = structs.replace(HEADS.decode(record.value), rules=Rules(99))
    await ground.scope.commit(Put(ground.keys.head, head_value(head), record.version))
    own = ground.scope.key("own")
    extra = ExtraChanges[Answer]((own,), lambda _, seen: [Put(own, b"mine", seen.version(own))])
    entry = Entry("new", "new", OfRun("new"), Instant(0))
    request = EnterRequest(ADDRESS, spec(99), entry)
    answered = await ground.lines[0].enter(request, is_new=True, extra_changes=extra)
    assert answered.sight.versions[own] == (await ground.scope.read(own)).version(own)
    assert isinstance(await ground.lines[1].find(ADDRESS, "new"), RunGrant)


@pytest.mark.parametrize("listed", [0, 1, 8])
async def test_any_program_leaves_as_many_records_as_are_counted(
    ground: Ground, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, random requests: what holds never exceeds the permits, and the count is right after each."""
    monkeypatch.setattr("standfast.locks.line_records.FEW_HOLDERS", listed)
    chance = random.Random(listed)
    places: dict[str, int | None] = {}
    for number in range(400):
        process, permits = chance.randrange(2), 12
        if places and chance.random() < 0.5:
            name = chance.choice(sorted(places))
            del places[name]
            await ground.leave(name, process=process)
        else:
            name = f"r{number}"
            answer = await ground.enter(name, permits, process=process)
            places[name] = answer.ticket if isinstance(answer, Waiting) else None
        head, counted = await ground.head(), await ground.counted()
        held = 0 if head is None else head.unseen + len(head.holders)
        assert held == min(len(places), permits)
        assert (0 if head is None else head.unseen) == len(counted)
        assert counted <= places.keys()


class Processes:
    """Some requests of processes that hold a limit, each by the presence of its space."""

    def __init__(self, *spaces: sf.Space) -> None:
        self.spaces = spaces
        self.keys = LineKeys(spaces[0], ADDRESS)

    async def take(self, process: int, permits: int = 1_000, **options: Any) -> Holding:
        """Let a request enter, and hold."""
        space = self.spaces[process]
        request = AcquireRequest(
            "the limit", ADDRESS, spec(permits), space.lease, "here", owner=new_id(), may_circle=False, **options
        )
        holding = Holding(space._lines, request, "tell")
        await holding.__aenter__()
        return holding

    async def head(self) -> Head | None:
        """Return the head of the line."""
        record = (await self.spaces[0].read(self.keys.head)).get(self.keys.head)
        return None if record is None else HEADS.decode(record.value)

    async def records(self) -> int:
        """Count the records of holders that are only counted."""
        return len((await self.spaces[0].scan(*self.keys.all_held(), limit=1_000)).records)

    async def dies(self, process: int) -> str:
        """End the presence of a process, as it is when the process has died."""
        presence = next(iter(self.spaces[process]._lines.heartbeat._presences.values()))
        await remove(self.spaces[process].store, presence.key)
        return presence.name

    async def reap(self, process: int) -> None:
        """Let a process look for the dead."""
        lines = self.spaces[process]._lines
        await lines.reap(lines.line(ADDRESS))


@pytest.fixture
async def processes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Processes]:
    """Two processes at one store, which closes without waiting for holds that nobody gave back."""
    monkeypatch.setattr("standfast.locks.registry.BODIES_END_WITHIN", 0.0)
    url = f"memory://{new_id()}"
    async with sf.open(url, lease="1 hour") as one, sf.open(url, lease="1 hour") as other:
        yield Processes(one, other)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another task does."""
    async with asyncio.timeout(15):
        while not await holds():  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0)


async def test_requests_are_counted_by_the_presence_of_their_process(processes: Processes) -> None:
    """The head says how many of each, and nothing of them is left when they are given back."""
    held = [await processes.take(number % 2) for number in range(FEW_HOLDERS + 7)]
    head = await processes.head()
    assert head is not None
    assert (len(head.holders), head.unseen, sorted(head.unseen_of.values())) == (FEW_HOLDERS, 7, [3, 4])
    assert await processes.records() == 7
    for each in reversed(held):
        await each.__aexit__(None, None, None)
    assert (await processes.head(), await processes.records()) == (None, 0)


async def test_the_count_of_a_dead_process_falls_in_one_commit(processes: Processes) -> None:
    """Its places are free at once; its records are deleted afterwards, and those of others stay."""
    for _ in range(FEW_HOLDERS):
        await processes.take(0)
    theirs = [await processes.take(1) for _ in range(250)]
    own = [await processes.take(0) for _ in range(3)]
    name = await processes.dies(1)
    await processes.reap(0)
    head = await processes.head()
    assert head is not None
    assert (head.unseen, name in head.unseen_of) == (3, False)

    async def is_cleared() -> bool:
        found = await processes.head()
        return found is not None and not found.fallen

    await until(is_cleared)
    assert await processes.records() == 3
    for each in (*theirs, *own):
        await each.__aexit__(None, None, None)
    head = await processes.head()
    assert head is not None
    assert (head.unseen, len(head.holders), await processes.records()) == (0, FEW_HOLDERS, 0)


async def test_giving_back_what_has_fallen_deletes_only_its_record(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no place of another, whoever has not cleared it yet."""
    monkeypatch.setattr(Lines, "_clear", lambda *_: None)
    for _ in range(FEW_HOLDERS + 2):
        await processes.take(0)
    late = await processes.take(1)
    await processes.dies(1)
    await processes.reap(0)
    assert await processes.records() == 3
    told = await explain(processes.spaces[0], ADDRESS)
    assert (told.holding, len(told.holders)) == (FEW_HOLDERS + 2, FEW_HOLDERS + 2)
    await late.__aexit__(None, None, None)
    head = await processes.head()
    assert head is not None
    assert (head.unseen, await processes.records()) == (2, 2)


async def test_what_a_process_did_not_clear_another_one_does(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head names the presence until all of its records are deleted."""
    with monkeypatch.context() as patched:
        patched.setattr(Lines, "_clear", lambda *_: None)
        for _ in range(FEW_HOLDERS):
            await processes.take(0)
        for _ in range(5):
            await processes.take(1)
        name = await processes.dies(1)
        await processes.reap(0)
    head = await processes.head()
    assert head is not None
    assert (head.fallen, await processes.records()) == ((name,), 5)
    monkeypatch.setattr("standfast.locks.registry.CLEARED_WITHIN", 0.0)
    await processes.reap(0)

    async def is_cleared() -> bool:
        found = await processes.head()
        return found is not None and not found.fallen

    await until(is_cleared)
    assert await processes.records() == 0


async def test_a_hold_that_is_only_counted_is_told_that_it_fell(processes: Processes) -> None:
    """As soon as its process sees the line without it; those of others are not."""
    for _ in range(FEW_HOLDERS):
        await processes.take(0)
    own, theirs = await processes.take(0), await processes.take(1)
    await processes.dies(1)
    await processes.reap(0)
    assert own._hold is not None
    assert theirs._hold is not None
    await processes.spaces[1]._lines.line(ADDRESS).look()
    await processes.spaces[0]._lines.line(ADDRESS).look()
    assert (own._hold.is_lost, theirs._hold.is_lost) == (False, True)


async def test_a_hold_without_its_record_is_told_after_a_notice_may_have_been_missed(processes: Processes) -> None:
    """An operator has evicted it, and its process did not hear of it."""
    held = [await processes.take(0) for _ in range(FEW_HOLDERS + 3)]
    last = held[-1]._place
    assert last is not None
    line = processes.spaces[0]._lines.line(ADDRESS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lines, "_tell_cancelled", lambda *_: None)
        assert await processes.spaces[1]._lines.evict(ADDRESS, spec(9), last.entry.id)
    await line.check_counted()
    assert [each._hold is not None and each._hold.is_lost for each in held] == [False] * (FEW_HOLDERS + 2) + [True]


async def test_a_check_of_counted_holds_looks_at_some_and_goes_on_the_next_time(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs the same however many are held, and after a few all were looked at."""
    held = [await processes.take(0) for _ in range(FEW_HOLDERS + 5)][FEW_HOLDERS:]
    monkeypatch.setattr("standfast.locks.line_driver.MOST_KEYS", 2)
    line, lost = processes.spaces[0]._lines.line(ADDRESS), list[int]()
    for record in (await processes.spaces[0].scan(*processes.keys.all_held(), limit=9)).records:
        await remove(processes.spaces[0].store, record)
    for _ in range(3):
        await line.check_counted()
        lost.append(sum(each._hold is not None and each._hold.is_lost for each in held))
    assert lost == [2, 4, 5]


async def test_the_guard_of_a_hold_that_is_only_counted_refuses_after_it_has_left(processes: Processes) -> None:
    """Its fence is the version of its own record."""
    for _ in range(FEW_HOLDERS):
        await processes.take(0)
    holding = await processes.take(1)
    assert holding._hold is not None
    guard, space = holding._hold.guard, processes.spaces[1]
    assert not isinstance(await space.commit(Put(space.key("effect", "1"), b"1:1"), guard), Conflict)
    await holding.__aexit__(None, None, None)
    assert isinstance(await space.commit(Put(space.key("effect", "2"), b"1:1"), guard), Conflict)
