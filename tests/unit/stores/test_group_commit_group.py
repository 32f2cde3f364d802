"""What becomes of those who ride together when one of them breaks off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

import pytest
from msgspec import structs

from standfast.codec import MAX_BYTES
from standfast.errors import InvalidChangeError, OutcomeUnknownError
from standfast.events import Committed, Event, Hooks
from standfast.keys import RecordKey
from standfast.stores import Commit, Decision, GroupedStore, Put, Snapshot, verdict_of
from standfast.stores.backend import Applied, Deferred
from standfast.stores.group_commit import ANY_NUMBER, AT_ONCE_IN_A_ROW, TOLD_AT_ONCE, USED_TO_BE_ALONE
from standfast.stores.memory import CAPABILITIES, MemoryBackend, MemoryRecords, open_memory
from standfast.stores.validation import A_FEW

if TYPE_CHECKING:
    from standfast.stores.backend import RiderBatch


async def test_large_commits_do_not_all_share_one_transaction(batches: list[int]) -> None:
    """Nobody waits for more than a few megabytes to be written, and none is left behind."""
    store, value = open_memory(), bytes(ANY_NUMBER.max_bytes // 20)
    verdicts = await asyncio.gather(*(store.commit(Put(RecordKey("ns", str(n)), value)) for n in range(50)))
    await store.aclose()

    assert batches == [20, 20, 10]
    assert all(isinstance(verdict, Commit) for verdict in verdicts)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of riders of each transaction in memory, as they happen."""
    sizes: list[int] = []
    apply = MemoryBackend.apply_now

    def note(backend: MemoryBackend, batch: RiderBatch) -> Applied | None:
        sizes.append(len(batch.riders))
        return apply(backend, batch)

    monkeypatch.setattr(MemoryBackend, "apply_now", note)
    return sizes


async def commit_alone(store: GroupedStore, times: int) -> None:
    """Commit one after another, until the group is used to it."""
    for number in range(times):
        await store.commit(Put(RecordKey("ns", "alone", str(number)), b""))


@pytest.mark.parametrize(
    "narrow", [{"max_value_bytes": MAX_BYTES - 1}, {"max_changes": A_FEW - 1}, {"max_commit_bytes": MAX_BYTES}]
)
async def test_what_is_not_checked_is_what_the_store_takes_in_any_case(narrow: dict[str, int]) -> None:
    """In a store that takes less, or with many changes, our own commits are checked as well."""
    many = [Put(RecordKey("ns", str(number)), b"x") for number in range(101)]
    large = Put(RecordKey("ns", "large"), bytes(MAX_BYTES))
    wide = open_memory()
    assert isinstance(await wide.commit_unchecked(large), Commit)
    with pytest.raises(InvalidChangeError, match="at most 100 changes"):
        await wide.commit_unchecked(*many)
    await wide.aclose()

    limits = structs.replace(CAPABILITIES, **narrow)
    store = GroupedStore(MemoryBackend(MemoryRecords(capabilities=limits)))
    with pytest.raises(InvalidChangeError):
        await store.commit_unchecked(large, *many[: A_FEW - 1])
    await store.aclose()


async def test_who_was_alone_for_a_while_leaves_at_once(batches: list[int]) -> None:
    """Its commit is durable before the loop has run again."""
    store, turns = open_memory(), list[None]()
    await commit_alone(store, USED_TO_BE_ALONE)
    asyncio.get_running_loop().call_soon(turns.append, None)

    await store.commit(Put(RecordKey("ns", "next"), b""))

    assert turns == []
    assert batches == [1] * (USED_TO_BE_ALONE + 1)
    await store.aclose()


async def test_two_that_are_expected_share_a_transaction_though_they_were_alone(batches: list[int]) -> None:
    """The first waits for the second, which comes in the next turn of the loop."""
    store = open_memory()
    await commit_alone(store, USED_TO_BE_ALONE)
    del batches[:]

    async def later() -> None:
        await asyncio.sleep(0)
        await store.commit(Put(RecordKey("ns", "second"), b""))

    second = asyncio.ensure_future(later())
    await asyncio.sleep(0)
    store.expect_another()
    await store.commit(Put(RecordKey("ns", "first"), b""))
    await second
    await store.aclose()

    assert batches == [2]


async def test_one_who_is_always_alone_still_lets_the_loop_run() -> None:
    """Whatever else is ready waits for a few commits at most."""
    store, turns = open_memory(), list[None]()
    await commit_alone(store, USED_TO_BE_ALONE)
    asyncio.get_running_loop().call_soon(turns.append, None)

    for number in range(AT_ONCE_IN_A_ROW):
        assert turns == []
        await store.commit(Put(RecordKey("ns", "next", str(number)), b""))

    assert turns == [None]
    await store.aclose()


@final
class HearsCommits:
    """A hook that keeps the riders and conflicts of each transaction: of events, or as bare facts."""

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self.heard: list[tuple[str, int, int]] = []

    def wants(self, kind: type[Event]) -> bool:
        """Want transactions."""
        return kind is Committed

    def tally_of(self, kind: type[Event]) -> object:
        """Take their facts, if this one counts only."""
        return self._take if self._counts and kind is Committed else None

    def _take(self, store: str, seconds: float, riders: int, conflicts: int) -> None:
        assert seconds >= 0
        self.heard.append((store, riders, conflicts))

    def __call__(self, event: Event, /) -> None:
        """Take an event."""
        assert isinstance(event, Committed)
        assert not self._counts
        self._take(event.store, event.seconds, event.riders, event.conflicts)


@pytest.mark.parametrize("counts", [True, False])
async def test_every_transaction_is_told_once_whichever_way_it_goes(batches: list[int], *, counts: bool) -> None:
    """Of riders that leave at once, alone or in a crowd; with those of them that lost a race."""
    hook, key = HearsCommits(counts=counts), RecordKey("ns", "taken")
    store = GroupedStore(MemoryBackend(MemoryRecords()), Hooks([hook]))
    await commit_alone(store, USED_TO_BE_ALONE + 3 * AT_ONCE_IN_A_ROW)
    for _ in range(2):
        await store.commit_unchecked(Put(key, b"", 0))
    await asyncio.gather(*(store.commit(Put(key, b"", 0)) for _ in range(50)))
    await store.aclose()

    assert [riders for _, riders, _ in hook.heard] == batches
    assert min(batches) < max(batches)
    assert sum(conflicts for _, _, conflicts in hook.heard) == 51
    assert {name.partition(":")[0] for name, _, _ in hook.heard} == {"memory"}


async def test_a_crowd_that_finds_one_alone_soon_rides_together(batches: list[int]) -> None:
    """After one who left at once, many share their transactions as ever."""
    store = open_memory()
    await commit_alone(store, 20)
    batches.clear()

    async def task(name: str) -> None:
        for number in range(10):
            await store.commit(Put(RecordKey("ns", name, str(number)), b""))

    await asyncio.gather(*(task(str(number)) for number in range(100)))

    assert len(batches) <= 10 + AT_ONCE_IN_A_ROW + 1
    assert sum(batches) == 1_000
    await store.aclose()


async def test_a_cancellation_after_leaving_at_once_carries_the_verdict() -> None:
    """Cancelled in the turn of the loop that follows, the caller can still learn that it has written."""
    store = open_memory()
    await commit_alone(store, USED_TO_BE_ALONE + AT_ONCE_IN_A_ROW - 1)
    task = asyncio.create_task(store.commit(Put(RecordKey("ns", "next"), b"")))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task

    assert isinstance(verdict_of(cancelled.value), Commit)
    await store.aclose()


class Interrupting:
    """An update whose decision is interrupted, as by Ctrl-C, and a commit beside it."""

    store: GroupedStore
    riders: list[asyncio.Task[object]]

    async def run(self) -> None:
        """Let both ride together."""
        self.store = open_memory()
        key = RecordKey("ns", "a")
        self.riders = [
            asyncio.create_task(self.store.update([key], self.decide)),
            asyncio.create_task(self.store.commit(Put(RecordKey("ns", "b"), b""))),
        ]
        await asyncio.wait(self.riders)

    def decide(self, _: Snapshot) -> Decision[None]:
        """Be interrupted."""
        raise KeyboardInterrupt

    async def outcomes(self) -> list[object]:
        """Return what the riders got."""
        return await asyncio.gather(*self.riders, return_exceptions=True)


@pytest.fixture
def interrupted() -> tuple[asyncio.Runner, Interrupting]:
    """A loop that was interrupted in the midst of a transaction."""
    runner, interrupting = asyncio.Runner(), Interrupting()
    with pytest.raises(KeyboardInterrupt):
        runner.run(interrupting.run())
    return runner, interrupting


def test_an_interruption_leaves_nobody_waiting(interrupted: tuple[asyncio.Runner, Interrupting]) -> None:
    """All riders of the transaction are told that it is not known what became of it."""
    with interrupted[0] as runner:
        outcomes = runner.run(interrupted[1].outcomes())

    assert [type(each) for each in outcomes] == [OutcomeUnknownError, OutcomeUnknownError]


def test_a_store_goes_on_after_an_interruption(interrupted: tuple[asyncio.Runner, Interrupting]) -> None:
    """The next commit is written as if nothing had happened."""
    with interrupted[0] as runner:
        runner.run(interrupted[1].outcomes())
        verdict = runner.run(interrupted[1].store.commit(Put(RecordKey("ns", "c"), b"")))

    assert isinstance(verdict, Commit)


async def test_one_who_is_cancelled_twice_while_put_off_is_not_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put off to the next transaction and cancelled right then, a rider is withdrawn; nobody waits for its verdict."""
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[object]]()

    async def put_off(_backend: MemoryBackend, _batch: RiderBatch) -> Applied:
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        loop.call_soon(tasks[0].cancel)
        return Applied((Deferred(),))

    monkeypatch.setattr(MemoryBackend, "apply_now", lambda _backend, _batch: None)
    monkeypatch.setattr(MemoryBackend, "apply", put_off)
    store = open_memory()
    tasks.append(asyncio.create_task(store.commit(Put(RecordKey("ns", "k"), b""))))

    with pytest.raises(asyncio.CancelledError) as cancelled:
        await asyncio.wait_for(asyncio.shield(tasks[0]), 1)
    assert verdict_of(cancelled.value) is None
    await store.aclose()


async def test_many_riders_of_one_transaction_are_resumed_some_in_each_turn_of_the_loop(batches: list[int]) -> None:
    """What else is ready has its turn between them, and all of them are answered, in order."""
    store, resumed, seen = open_memory(), list[int](), list[int]()

    async def commit(number: int) -> None:
        await store.commit(Put(RecordKey("ns", str(number)), b""))
        resumed.append(number)

    many = 2 * TOLD_AT_ONCE + 10
    tasks = [asyncio.create_task(commit(number)) for number in range(many)]
    while len(resumed) < many:
        seen.append(len(resumed))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    await store.aclose()

    assert batches == [many]
    assert resumed == list(range(many))
    assert {*seen} == {0, TOLD_AT_ONCE, 2 * TOLD_AT_ONCE}


async def test_a_rider_that_is_cancelled_before_it_is_resumed_is_told_that_it_was_written(batches: list[int]) -> None:
    """Its commit is durable by then: the cancellation carries the verdict."""
    store = open_memory()
    many = TOLD_AT_ONCE + 1
    tasks = [asyncio.create_task(store.commit(Put(RecordKey("ns", str(n)), b""))) for n in range(many)]
    while not tasks[0].done():  # noqa: ASYNC110 -- it is the turn of the loop that counts
        await asyncio.sleep(0)
    last = tasks[-1]
    last.cancel()

    with pytest.raises(asyncio.CancelledError) as cancelled:
        await last
    assert batches == [many]
    assert isinstance(verdict_of(cancelled.value), Commit)
    await asyncio.gather(*tasks[:-1])
    await store.aclose()
