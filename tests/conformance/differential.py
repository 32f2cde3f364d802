"""A state machine that does the same to a store and to the pure model: after any program both say the same."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, GroupedStore, Put
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.testing import StoreModel, VirtualClock
from tests.sizes import size

if TYPE_CHECKING:
    from standfast.stores import Change, Snapshot

Open: TypeAlias = Callable[[], Awaitable[GroupedStore]]
"""Opens a handle on the data of one program."""

Opening: TypeAlias = Callable[[VirtualClock], Open]
"""Prepares the data of one program, on a clock that it advances; a store with a clock of its own ignores that."""

PARTS = (("a",), ("a", "b"), ("a\x00",), ("b",), ("",))

keys = st.sampled_from(range(len(PARTS)))
ends = st.sampled_from(range(len(PARTS) + 1))
values = st.binary(max_size=3)
soon = st.sampled_from([None] * 12 + [-60_000_000, -2, -1, 0, 1, 2, 3, 5, 2_000, 60_000_000])
"""Microseconds from now: many windows and expiries of these programs are about to open or close."""

guards = st.sampled_from(["present"] * 4 + ["absent", "stale"])
changes = st.tuples(st.sampled_from([Put, Put, Put, Delete, Check]), guards, values, soon)
commits = st.tuples(st.dictionaries(keys, changes, min_size=1, max_size=3), soon, soon)
updates = st.tuples(st.lists(keys, min_size=1, max_size=2, unique=True), st.sampled_from(["append", "delete", "look"]))


def compare_with_the_model(opening: Opening, *, full: int = 500, quick: int = 25, steps: int = 40) -> None:
    """Run programs on a store and on the model, each program in a namespace of its own, and compare every answer.

    On a server: ``compare_with_the_model(lambda _: lambda: open_it(url))``.

    Args:
        opening: Returns, for one program, what opens handles on its data.
        full: How many programs there are in a run at full size.
        quick: How many otherwise.
        steps: How long each is at most.
    """
    chosen = settings(max_examples=size(full=full, quick=quick), stateful_step_count=steps, deadline=None)

    class Comparison(StoreMachine):
        def __init__(self) -> None:
            super().__init__(opening)

    run_state_machine_as_test(Comparison, settings=chosen)


async def _opened(open_it: Open) -> GroupedStore:
    return await open_it()


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model, and compares every answer."""

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.open = opening(self.clock)
        namespace = f"differential-{uuid.uuid4().hex}"
        self.keys = [RecordKey(namespace, *parts) for parts in PARTS]
        self.bounds = [*sorted(self.keys), RecordKey(namespace).within()[1]]
        self.model = StoreModel()
        self.at = Instant(0)

    @initialize()
    def begin(self) -> None:
        """Open two handles."""
        self.stores = [self.runner.run(_opened(self.open)) for _ in range(2)]
        self.read(0, [0])

    def teardown(self) -> None:
        """Close everything."""
        for store in getattr(self, "stores", ()):
            self.runner.run(store.aclose())
        self.runner.close()

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(handle=st.integers(0, 1), asked=st.lists(keys, min_size=1, max_size=4, unique=True))
    def read(self, handle: int, asked: list[int]) -> None:
        """Both read the same."""
        wanted = [self.keys[each] for each in asked]
        answer = self.runner.run(self.stores[handle].read(*wanted))
        assert answer == self.model.read(wanted, at=self.later(answer.at))

    @rule(handle=st.integers(0, 1), bounds=st.tuples(ends, ends), limit=st.integers(1, 4), reverse=st.booleans())
    def scan(self, handle: int, bounds: tuple[int, int], limit: int, *, reverse: bool) -> None:
        """Both find the same page, and the same place to go on."""
        start, end = (self.bounds[each] for each in sorted(bounds))
        answer = self.runner.run(self.stores[handle].scan(start, end, limit=limit, reverse=reverse))
        assert answer == self.model.scan(start, end, limit=limit, reverse=reverse, at=self.later(answer.at))

    @rule(handle=st.integers(0, 1), asked=st.lists(commits | updates, min_size=1, max_size=5))
    def write(self, handle: int, asked: list[Any]) -> None:
        """Both do the same, also if several commits and updates come at once."""
        riders = [self.rider(each) for each in asked]
        answers = self.runner.run(all_at_once(self.stores[handle], riders))
        began_at = self.at
        for rider, answer in zip(riders, answers, strict=True):
            assert answer.at >= began_at  # of those who came at once, one may have been answered before another
            self.at = max(self.at, answer.at)
            if isinstance(rider, CommitRider):
                assert isinstance(answer, Commit | Conflict)
                window = {"after": rider.after, "before": rider.before}
                self.model, predicted = self.model.commit(rider.changes, like=answer, **window)
                assert answer == predicted, f"{rider} at {self.at}, begun at {began_at}: {answer}, not {predicted}"
            else:
                assert isinstance(answer, Decided)
                self.model, decided = self.model.update(rider.keys, rider.decide, like=answer)
                assert answer == decided, f"{rider} at {self.at}, begun at {began_at}: {answer}, not {decided}"

    @rule(microseconds=st.integers(1, 4))
    def let_time_pass(self, microseconds: int) -> None:
        """Time passes for the store, if it goes by this clock; the model goes by the store's answers."""
        self.clock.advance(microseconds / 1_000_000)

    @rule(seconds=st.sampled_from([-3600, 3600]))
    def step_the_wall_clock(self, seconds: int) -> None:
        """Somebody sets the time of day, which changes nothing."""
        self.clock.step_wall(seconds)

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle: int) -> None:
        """A handle is closed and another one opened."""
        self.runner.run(self.stores[handle].aclose())
        self.stores[handle] = self.runner.run(_opened(self.open))

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
            changes = [self.change(self.keys[key], *each) for key, each in drawn.items()]
            return CommitRider(tuple(changes), self.instant(after), self.instant(before))
        wanted, what = [self.keys[each] for each in asked[0]], asked[1]
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
