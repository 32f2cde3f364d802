"""The shared arbiter: what it makes of stores that do not answer, lost leases, operators and far-away processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import ArbiterUnavailableError, QueueTimeoutError, RequestCancelledError, RequestInterruptedError
from standfast.flows.arbiter import in_store as shared
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import QueueRules, Stop
from standfast.space import Space, lines_of
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import Faults, FaultyStore, VirtualClock, simulate
from tests.conformance.arbiter_visits import QUEUE, REJECT, SOON, Visit, ask, putting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.stores.backend import Applied, RiderBatch


@pytest.fixture
def memory() -> MemoryRecords:
    """What all spaces of a test share."""
    return MemoryRecords()


@pytest.fixture
async def space(memory: MemoryRecords) -> AsyncIterator[Space]:
    """The space of one process."""
    async with Space(GroupedStore(MemoryBackend(memory))) as space:
        yield space


@pytest.fixture
async def arbiter(space: Space) -> AsyncIterator[SharedArbiter]:
    """Its arbiter."""
    async with SharedArbiter(space) as arbiter:
        yield arbiter


async def test_a_store_that_does_not_answer_means_refusal(memory: MemoryRecords) -> None:
    """Nothing is run that was not arbitrated."""
    store = FaultyStore(GroupedStore(MemoryBackend(memory)), seed=1, faults=Faults(refuse=1.0))
    async with Space(store) as space, SharedArbiter(space) as arbiter:
        visit = Visit(arbiter, ask("r1"))
        with pytest.raises(ArbiterUnavailableError):
            await visit.ended()
        assert not visit.inside.is_set()


async def test_a_request_whose_lease_is_lost_is_interrupted(arbiter: SharedArbiter, space: Space) -> None:
    """Its body is cancelled, and it commits nothing."""
    key = space.key("session", "s-1")
    visit = await Visit(arbiter, ask("r1"), stubborn=True, last=putting(key, b"late")).runs()
    lines = lines_of(space)
    [hold] = lines.line(ask("").address).holds.values()
    assert hold.presence is not None
    lines.heartbeat.tell(hold.presence)
    with pytest.raises(RequestInterruptedError):
        await visit.end()
    assert (await space.read(key)).get(key) is None


async def test_a_request_that_an_operator_takes_out_of_its_line_is_cancelled(arbiter: SharedArbiter) -> None:
    """It is told so."""
    first = await Visit(arbiter, ask("r1")).runs()
    second = await Visit(arbiter, ask("r2")).waits()
    assert await arbiter.evict(ask("").address, "r2")
    with pytest.raises(RequestCancelledError, match="an operator"):
        await second.ended()
    await first.end()


async def test_a_stop_arrives_though_nobody_was_woken(
    arbiter: SharedArbiter, memory: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are looked for now and then: hints get lost."""
    monkeypatch.setattr(shared, "LOOK_EVERY", 0.01)
    store = FaultyStore(GroupedStore(MemoryBackend(memory)), seed=1, faults=Faults(drop_hint=1.0))
    async with Space(store) as deaf, SharedArbiter(deaf) as other:
        first = await Visit(other, ask("r1")).runs()
        assert await arbiter.stop(ask("").address, "r1", Stop(reason="enough"))
        with pytest.raises(RequestCancelledError):
            await first.ended()


async def test_a_stop_wakes_the_process_of_the_request(arbiter: SharedArbiter, memory: MemoryRecords) -> None:
    """Another process leaves a word, and the one in which the request runs is told of it, not only by its next look."""
    first = await Visit(arbiter, ask("r1")).runs()
    async with Space(GroupedStore(MemoryBackend(memory))) as space, SharedArbiter(space) as other:
        async with asyncio.timeout(SOON), arbiter.stop_messages.watch() as told:
            assert await other.stop(ask("").address, "r1", Stop(reason="enough"))
            while not (hint := await told.wait(SOON)):
                pass
        assert arbiter.stop_messages.entries(hint.about) == [*arbiter._here]
    with pytest.raises(RequestCancelledError):
        await first.ended()


async def test_a_look_for_words_costs_what_was_said_and_not_how_many_wait(
    arbiter: SharedArbiter, space: Space, memory: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among thousands of requests, one is told to stop: a page or two are read, no key of each that waits."""
    name = space.presence_name
    entries = dict.fromkeys(f"{name}:s:{number}" for number in range(5_000))
    await arbiter.stop_messages.leave(f"{name}:s:7", Stop(reason="enough"))
    await arbiter.stop_messages.leave(f"{name}:s:5001", Stop(reason="of one that has gone"))
    asked = 0

    def counted(ask: Any) -> Any:
        def count(*args: object, **options: object) -> object:
            nonlocal asked
            asked += 1
            return ask(*args, **options)

        return count

    monkeypatch.setattr(memory, "read", counted(memory.read))
    monkeypatch.setattr(memory, "scan", counted(memory.scan))
    assert {entry: stop.reason for entry, stop in (await arbiter.stop_messages.read(entries)).items()} == {
        f"{name}:s:7": "enough"
    }
    assert asked == 1


async def test_words_that_are_more_than_those_that_wait_are_read_by_key(arbiter: SharedArbiter, space: Space) -> None:
    """A process that has superseded many lately does not read all that it said to those that have gone."""
    name = space.presence_name
    for number in range(250):
        await arbiter.stop_messages.leave(f"{name}:a:{number}", Stop(reason="of one that has gone"))
    entries = dict.fromkeys(f"{name}:b:{number}" for number in range(150))
    await arbiter.stop_messages.leave(f"{name}:b:3", Stop(reason="enough"))
    assert [*await arbiter.stop_messages.read(entries)] == [f"{name}:b:3"]


async def test_a_request_leaves_nothing_in_the_store_when_it_has_ended(
    arbiter: SharedArbiter, memory: MemoryRecords
) -> None:
    """No line, no grant and no ticket, however many came and went."""
    visits = [Visit(arbiter, ask(f"r{number}")) for number in range(5)]
    for visit in visits:
        await (await visit.runs()).end()
    kinds = {key.parts[2] for key in memory._records}
    assert kinds == {"presence"}


async def test_one_that_comes_and_goes_takes_two_commits(
    arbiter: SharedArbiter, memory: MemoryRecords, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record and place are one, the end and leaving the other."""
    async with arbiter.hold(ask("r0")):
        pass  # the first one makes this process's presence
    commits: list[RiderBatch] = []
    apply = memory.apply

    def counted(batch: RiderBatch) -> Applied:
        commits.append(batch)
        return apply(batch)

    monkeypatch.setattr(memory, "apply", counted)
    async with arbiter.hold(ask("r1", REJECT, extra_changes=putting(space.key("request", "r1"), b""))) as turn:
        await turn.finish(putting(space.key("request", "r1"), b"done"))
    assert len(commits) == 2


@pytest.mark.parametrize("seed", range(10))
def test_a_turn_that_comes_exactly_when_the_budget_is_over_is_not_accepted(seed: int) -> None:
    """Whichever comes first; and the one behind it has its turn."""

    async def collide() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock)))
        async with Space(store, clock=clock) as space, SharedArbiter(space) as arbiter:
            async with arbiter.hold(ask("r1")):
                late = await Visit(arbiter, ask("r2", QueueRules(budget=1.0))).waits()
                behind = await Visit(arbiter, ask("r3", QUEUE)).waits()
                await asyncio.sleep(1.0)
            with pytest.raises(QueueTimeoutError):
                await late.ended()
            async with asyncio.timeout(SOON):
                await (await behind.runs()).end()

    simulate(seed, collide)
