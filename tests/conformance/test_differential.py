"""Stores and the pure model, side by side: after any program both say the same."""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from holdfast.clock import Instant
from holdfast.keys import RecordKey
from holdfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, GroupedStore, Put
from holdfast.stores.backend import CommitRider, UpdateRider
from holdfast.stores.memory import Memory, MemoryBackend
from holdfast.stores.sqlite import Options, open_sqlite
from holdfast.testing import StoreModel, VirtualClock
from tests.sizes import size

if TYPE_CHECKING:
    from holdfast.stores import Change, Snapshot

KEYS = [RecordKey("differential", *parts) for parts in (("a",), ("a", "b"), ("a\x00",), ("b",), ("",))]

keys = st.sampled_from(KEYS)
values = st.binary(max_size=3)
soon = st.none() | st.integers(-2, 5)
"""Microseconds from now: most windows and expiries of these programs are about to open or close."""

changes = st.tuples(
    st.sampled_from([Put, Put, Delete, Check]), st.sampled_from(["present", "absent", "stale"]), values, soon
)
commits = st.tuples(st.dictionaries(keys, changes, min_size=1, max_size=3), soon, soon)
updates = st.tuples(st.lists(keys, min_size=1, max_size=2, unique=True), st.sampled_from(["append", "delete", "look"]))


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model, and compares every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.model = StoreModel()
        self.at = Instant(0)

    async def open(self) -> GroupedStore:
        """Open a handle on the data of this run."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        """Open two handles."""
        self.stores = [self.runner.run(self.open()) for _ in range(2)]
        self.read(0, KEYS[0])

    def teardown(self) -> None:
        """Close everything."""
        for store in getattr(self, "stores", ()):
            self.runner.run(store.aclose())
        self.runner.close()

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(handle=st.integers(0, 1), asked=keys | st.lists(keys, min_size=2, max_size=4, unique=True))
    def read(self, handle: int, asked: Any) -> None:
        """Both read the same."""
        wanted = asked if isinstance(asked, list) else [asked]
        answer = self.runner.run(self.stores[handle].read(*wanted))
        assert answer == self.model.read(wanted, at=self.later(answer.at))

    @rule(handle=st.integers(0, 1), bounds=st.tuples(keys, keys), limit=st.integers(1, 4), reverse=st.booleans())
    def scan(self, handle: int, bounds: tuple[RecordKey, RecordKey], limit: int, *, reverse: bool) -> None:
        """Both find the same page, and the same place to go on."""
        answer = self.runner.run(self.stores[handle].scan(*bounds, limit=limit, reverse=reverse))
        assert answer == self.model.scan(*bounds, limit=limit, reverse=reverse, at=self.later(answer.at))

    @rule(handle=st.integers(0, 1), asked=st.lists(commits | updates, min_size=1, max_size=5))
    def write(self, handle: int, asked: list[Any]) -> None:
        """Both do the same, also if several commits and updates come at once."""
        riders = [self.rider(each) for each in asked]
        answers = self.runner.run(all_at_once(self.stores[handle], riders))
        for rider, answer in zip(riders, answers, strict=True):
            self.later(answer.at)
            if isinstance(rider, CommitRider):
                assert isinstance(answer, Commit | Conflict)
                window = {"after": rider.after, "before": rider.before}
                self.model, predicted = self.model.commit(rider.changes, like=answer, **window)
                assert answer == predicted
            else:
                assert isinstance(answer, Decided)
                self.model, decided = self.model.update(rider.keys, rider.decide, like=answer)
                assert answer == decided

    @rule(microseconds=st.integers(1, 4))
    def let_time_pass(self, microseconds: int) -> None:
        """Time passes for the store; the model goes by the store's answers."""
        self.clock.advance(microseconds / 1_000_000)

    @rule(seconds=st.sampled_from([-3600, 3600]))
    def step_the_wall_clock(self, seconds: int) -> None:
        """Somebody sets the time of day, which changes nothing."""
        self.clock.step_wall(seconds)

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle: int) -> None:
        """A handle is closed and another one opened."""
        self.runner.run(self.stores[handle].aclose())
        self.stores[handle] = self.runner.run(self.open())

    # --- how it is said ----------------------------------------------------------------------------------------

    def later(self, at: Instant) -> Instant:
        """Insist that time does not go backwards."""
        assert at >= self.at
        self.at = at
        return at

    def rider(self, asked: Any) -> CommitRider | UpdateRider:
        """Make a commit or an update of what was drawn."""
        if isinstance(asked[0], dict):
            drawn, after, before = asked
            if after is not None and before is not None and before <= after:
                before = None
            wanted = [self.change(key, *each) for key, each in drawn.items()]
            return CommitRider(tuple(wanted), self.instant(after), self.instant(before))
        wanted, what = asked
        return UpdateRider(tuple(wanted), lambda seen: decide(seen, wanted, what))

    def change(self, key: RecordKey, kind: type[Change], guard: str, value: bytes, expiry: int | None) -> Change:
        """Make a change whose guard holds, expects absence, or is stale."""
        record = self.model.record(key, self.at)
        present = 0 if record is None else record.version
        expected = {"present": present, "absent": 0, "stale": max(0, present - 1)}[guard]
        if kind is Put:
            return Put(key, value, expected, self.instant(expiry))
        return Delete(key, expected or 1) if kind is Delete else Check(key, expected or 1)

    def instant(self, microseconds: int | None) -> Instant | None:
        """Return an instant that lies so many microseconds ahead."""
        return None if microseconds is None else Instant(max(0, self.at + microseconds))


def decide(seen: Snapshot, wanted: list[RecordKey], what: str) -> Decision[list[bytes | None]]:
    """Append to the records, or delete them, or only look; answer what was there."""
    answer = [None if (record := seen.get(key)) is None else record.value for key in wanted]
    wishes: list[Change] = []
    for key in wanted:
        record = seen.get(key)
        if what == "append":
            wishes.append(Put(key, (b"" if record is None else record.value)[-2:] + b"+", seen.version(key)))
        elif what == "delete" and record is not None:
            wishes.append(Delete(key, record.version))
    return Decision(answer, tuple(wishes))


async def all_at_once(store: GroupedStore, riders: list[CommitRider | UpdateRider]) -> list[Any]:
    """Ask for everything in one tick, in order."""
    calls = [
        store.commit(*rider.changes, after=rider.after, before=rider.before)
        if isinstance(rider, CommitRider)
        else store.update(rider.keys, rider.decide)
        for rider in riders
    ]
    return list(await asyncio.gather(*calls))


class MemoryMachine(StoreMachine):
    """The store in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(clock=self.clock)

    async def open(self) -> GroupedStore:
        """Open another handle on the same memory."""
        return GroupedStore(MemoryBackend(self.memory))


class SqliteMachine(StoreMachine):
    """The SQLite store, with handles that commit on the loop and on a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.opened = 0

    async def open(self) -> GroupedStore:
        """Open another handle on the same file."""
        self.opened += 1
        options = Options(commits="thread" if self.opened % 2 else "loop", hints="process")
        return await open_sqlite(f"{self.folder.name}/store.db", options, clock=self.clock)

    def teardown(self) -> None:
        """Close everything and remove the file."""
        super().teardown()
        self.folder.cleanup()


TestMemoryAndModel = MemoryMachine.TestCase
TestMemoryAndModel.settings = settings(max_examples=size(full=2_000, quick=100), stateful_step_count=50, deadline=None)

TestSqliteAndModel = SqliteMachine.TestCase
TestSqliteAndModel.settings = settings(max_examples=size(full=500, quick=25), stateful_step_count=40, deadline=None)
