"""A state: what is read, what is written, what a write may depend on, and who is told."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct

from standfast.errors import (
    ArgumentTypeError,
    AtomicStateConflictError,
    DecodeError,
    EncodeError,
    InvalidArgumentError,
    StaleWriteError,
    UnsuitableStoreError,
)
from standfast.locks import (
    KEEP,
    AtomicState,
    StateChanged,
    StateConflict,
    StateEvent,
    StateEventsDropped,
    StateExhausted,
    StateValue,
)
from standfast.scope import Scope
from standfast.stores import Check, Commit, Put
from standfast.stores.url import open_store
from standfast.testing import NonAtomicStore, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

NAN, INF = float("nan"), float("inf")


class Account(Struct, frozen=True):
    """A value with a type of its own."""

    owner: str
    balance: int = 0


def state_of(scope: Scope, name: str = "it", **options: Any) -> AtomicState[Any]:
    """Return a handle on a state."""
    return AtomicState(scope, scope.key("state", name), **options)


async def test_what_is_set_is_got(scope: Scope) -> None:
    """A value comes back through another handle as it was written."""
    await state_of(scope).set({"names": ["a", None], "share": 0.5})
    assert await state_of(scope).get() == {"names": ["a", None], "share": 0.5}


async def test_a_state_that_was_never_written_reads_as_its_initial_value(scope: Scope) -> None:
    """Reading does not write it."""
    state = state_of(scope, initial=7)
    assert await state.read() == StateValue(7, 0)
    assert await state_of(scope).get() is None


async def test_the_initial_value_is_copied_when_the_handle_is_made(scope: Scope) -> None:
    """Neither what was handed in nor what was handed out reaches it later."""
    given = {"list": [1]}
    state = state_of(scope, initial=given)
    given["list"].append(2)
    out: Any = await state.get()
    out["list"].append(3)
    assert await state.get() == {"list": [1]}


async def test_a_deleted_state_reads_as_none_and_not_as_initial(scope: Scope) -> None:
    """The initial value is for what was never written; also a delete counts as a write."""
    written, untouched = state_of(scope, "a", initial=7), state_of(scope, "b", initial=7)
    await written.set(8)
    await written.delete()
    await untouched.delete()
    assert (await written.get(), await untouched.get()) == (None, None)


async def test_versions_grow_across_a_delete(scope: Scope) -> None:
    """Each write, a delete included, has a higher version than the one before."""
    state = state_of(scope)
    versions = [await state.set(1), await state.delete(), await state.delete(), await state.set(2)]
    assert versions == sorted(set(versions))
    assert (await state.read()).version == versions[-1]


async def test_a_stale_writer_cannot_undo_a_delete(scope: Scope) -> None:
    """Neither one that saw the value nor one that saw nothing at all."""
    state = state_of(scope)
    seen = await state.set(1)
    await state.delete()
    for expected in (seen, 0):
        with pytest.raises(StaleWriteError, match="is at version"):
            await state.set(1, expected_version=expected)
    assert await state.get() is None


@pytest.mark.parametrize("write", ["set", "update", "update outside", "delete"])
async def test_a_write_that_expects_another_version_is_refused(scope: Scope, write: str) -> None:
    """It names the version that is there, and nothing is written."""
    state = state_of(scope)
    version = await state.set("kept")
    writes: dict[str, Callable[[int], Any]] = {
        "set": lambda expected: state.set("new", expected_version=expected),
        "update": lambda expected: state.update(lambda _: "new", expected_version=expected),
        "update outside": lambda expected: state.update(_renamed, expected_version=expected),
        "delete": lambda expected: state.delete(expected_version=expected),
    }
    with pytest.raises(StaleWriteError, match=f"is at version {version}, not {version + 5}"):
        await writes[write](version + 5)
    assert await state.get() == "kept"

    await writes[write](version)
    assert await state.get() != "kept"


async def _renamed(_value: Any) -> str:
    return "new"


@pytest.mark.parametrize("write", ["set", "update", "update outside", "delete"])
async def test_a_write_whose_guard_does_not_hold_is_refused(scope: Scope, write: str) -> None:
    """A check of another record holds in the very commit of the write, or nothing is written."""
    state, lock = state_of(scope), scope.key("grant", "it")
    await state.set("kept")
    granted = await scope.commit(Put(lock, b"ours"))
    assert isinstance(granted, Commit)
    guard = Check(lock, granted.versions[lock])
    writes: dict[str, Callable[[], Any]] = {
        "set": lambda: state.set("new", guard=guard),
        "update": lambda: state.update(lambda _: "new", guard=guard),
        "update outside": lambda: state.update(_renamed, guard=guard),
        "delete": lambda: state.delete(guard=guard),
    }
    await writes[write]()
    await state.set("kept")
    await scope.commit(Put(lock, b"theirs", expected=guard.expected))

    with pytest.raises(StaleWriteError, match="not as the guard wants it"):
        await writes[write]()
    assert await state.get() == "kept"


async def test_a_guard_is_part_of_the_commit(clock: VirtualClock) -> None:
    """The store is told to check its record, so that nothing happens to it between a look and the write."""

    class Watched(Scope):
        def update(self, keys: Any, decide: Any) -> Any:
            def noted(seen: Any) -> Any:
                decided.append(decide(seen))
                return decided[-1]

            return super().update(keys, noted)

    decided: list[Any] = []
    async with Watched(await open_store("memory://", clock=clock)) as scope:
        lock = scope.key("grant", "it")
        granted = await scope.commit(Put(lock, b"ours"))
        assert isinstance(granted, Commit)
        guard = Check(lock, granted.versions[lock])
        await state_of(scope).set(1, guard=guard)
    assert guard in decided[0].changes


async def test_a_guard_that_is_gone_holds_nothing(scope: Scope) -> None:
    """A record that does not exist is nobody's grant."""
    state = state_of(scope)
    with pytest.raises(StaleWriteError, match="does not exist"):
        await state.set(1, guard=Check(scope.key("grant", "it"), 3))
    assert await state.read() == StateValue(None, 0)


async def test_what_cannot_be_a_guard_is_refused(scope: Scope) -> None:
    """Absence, the state itself and other things guard nothing."""
    state = state_of(scope)
    wrong: list[Any] = [Check(scope.key("grant"), 0), Check(state.key, 1), "lock"]
    for guard in wrong:
        with pytest.raises(InvalidArgumentError, match="guard"):
            await state.set(1, guard=guard)


async def test_updates_of_many_are_all_counted(scope: Scope) -> None:
    """Nobody's update is lost, however many handles there are."""
    states = [state_of(scope, initial=0) for _ in range(10)]
    await asyncio.gather(*(state.update(lambda value: (value or 0) + 1) for state in states for _ in range(10)))
    assert await states[0].get() == 100


async def test_an_update_answers_with_its_last_run(scope: Scope) -> None:
    """What is returned is what was committed, though the updater ran before on an older value."""
    state, other = state_of(scope, initial=0), state_of(scope)
    seen: list[int] = []

    async def double(value: Any) -> int:
        seen.append(value)
        if len(seen) == 1:
            await other.set(21)
        return int(value) * 2

    assert (await state.update(double), seen, await state.get()) == (42, [0, 21], 42)


async def test_an_async_updater_that_always_loses_gives_up(scope: Scope) -> None:
    """Three tries with two waits between them, each of a random part of a growing limit."""
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    state, other = state_of(scope, max_retries=3, sleep=sleep, random=lambda: 0.5), state_of(scope, initial=0)

    async def outrun(_value: Any) -> int:
        return int(await other.increment())

    with pytest.raises(AtomicStateConflictError) as refused:
        await state.update(outrun)
    assert (refused.value.attempts, refused.value.state_key) == (3, str(state.key))
    assert sleeps == [0.0025, 0.005]
    assert await other.get() == 3


async def test_the_wait_between_tries_has_a_limit(scope: Scope) -> None:
    """It doubles from 5 ms up to 100 ms."""
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(round(seconds, 6))

    state, other = state_of(scope, sleep=sleep, random=lambda: 1.0), state_of(scope, initial=0)
    with pytest.raises(AtomicStateConflictError):
        await state.update(outrunning(other))
    assert sleeps == [0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.1, 0.1]


def outrunning(other: AtomicState[Any]) -> Any:
    """Return a callable object that is async and always loses."""

    class Outrun:
        async def __call__(self, _value: Any) -> int:
            return int(await other.increment())

    return Outrun()


async def test_an_updater_that_raises_writes_nothing(scope: Scope) -> None:
    """Its own exception reaches the caller."""
    state = state_of(scope, initial=1)
    with pytest.raises(ZeroDivisionError):
        await state.update(lambda _: 1 // 0)
    assert (await state.read()).version == 0


async def test_a_coroutine_out_of_a_plain_updater_is_refused(scope: Scope) -> None:
    """A lambda around an async function would run it inside the transaction, or never."""
    with pytest.raises(ArgumentTypeError, match="declare the updater with async def"):
        await state_of(scope).update(lambda _: _renamed("old"))


async def test_counting(scope: Scope) -> None:
    """Nothing counts as zero; whole numbers stay whole."""
    state = state_of(scope)
    counted = [await state.increment(), await state.increment(41), await state.decrement(2), await state.decrement()]
    assert counted == [1, 42, 40, 39]
    assert type(await state.get()) is int
    assert await state.increment(0.5) == 39.5


async def test_merging(scope: Scope) -> None:
    """Named entries are set, others stay."""
    state = state_of(scope)
    assert await state.merge({"a": 1, "b": 1}) == {"a": 1, "b": 1}
    assert await state.merge({"b": 2}) == {"a": 1, "b": 2}
    assert await state.get() == {"a": 1, "b": 2}


async def test_appending_and_removing(scope: Scope) -> None:
    """A list is a queue at both ends; taking from an empty one answers None and writes nothing."""
    state = state_of(scope)
    assert await state.remove_first() is None
    assert (await state.read()).version == 0
    assert await state.append("a", "b", "c") == ["a", "b", "c"]
    assert (await state.remove_first(), await state.remove_last(), await state.get()) == ("a", "c", ["b"])


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.increment(),
        lambda state: state.merge({"a": 1}),
        lambda state: state.append(1),
        lambda state: state.remove_first(),
        lambda state: state.remove_last(),
    ],
)
async def test_what_does_not_fit_the_value_is_refused(scope: Scope, change: Callable[[Any], Any]) -> None:
    """The error names what is there, and nothing is written."""
    state = state_of(scope)
    version = await state.set(True)
    with pytest.raises(ArgumentTypeError, match="can work on, got a bool"):
        await change(state)
    assert await state.read() == StateValue(True, version)


@pytest.mark.parametrize(("call", "given"), [("increment", True), ("decrement", "1"), ("merge", [1])])
async def test_what_cannot_be_added_is_refused(scope: Scope, call: str, given: Any) -> None:
    """Before anything is read or written."""
    with pytest.raises(ArgumentTypeError, match=call):
        await getattr(state_of(scope), call)(given)


async def test_a_typed_state_gives_its_type_back(scope: Scope) -> None:
    """The declared type is what is read; a struct as the initial value declares it."""
    state = AtomicState(scope, scope.key("state", "it"), type=Account)
    await state.set(Account("anna", 5))
    assert await state.get() == Account("anna", 5)
    assert await state_of(scope, "other", initial=Account("ben")).get() == Account("ben")


@pytest.mark.parametrize("value", [NAN, INF, {1: "a"}, b"bytes", "x" * 400_000, Account("anna"), "\ud800"])
async def test_what_cannot_be_restored_is_not_stored(scope: Scope, value: Any) -> None:
    """It is refused in every way of writing, and as the initial value."""
    state = state_of(scope)
    for write in (state.set(value), state.update(lambda _: value), state.append(value)):
        with pytest.raises(EncodeError):
            await write
    assert await state.get() is None


async def test_an_initial_value_that_cannot_be_stored_is_refused(scope: Scope) -> None:
    """When the handle is made, not when it is first read."""
    with pytest.raises(EncodeError, match="finite"):
        state_of(scope, initial=[NAN])


async def test_damage_is_reported_and_repaired_by_a_write(scope: Scope) -> None:
    """Reading and updating fail; setting and deleting work, also with listeners, and the version goes on."""
    state = state_of(scope)
    state.on(StateChanged, lambda _: None)
    await scope.commit(Put(state.key, b"garbage"))
    for attempt in (state.get(), state.increment()):
        with pytest.raises(DecodeError):
            await attempt
    assert await state.delete() > 1
    assert await state.get() is None


@pytest.mark.parametrize("max_retries", [0, -1, 1.5, True, None, NAN])
async def test_impossible_retries_are_refused(scope: Scope, max_retries: Any) -> None:
    """Tries are a whole number from 1 on."""
    with pytest.raises(InvalidArgumentError, match="max_retries"):
        state_of(scope, max_retries=max_retries)


async def test_a_key_of_another_space_is_refused(scope: Scope) -> None:
    """A state lies in the space that it was made with."""
    with pytest.raises(ArgumentTypeError):
        await AtomicState(scope, "state").get()  # type: ignore[call-overload] # the mistake under test


def test_a_store_without_atomic_commits_is_refused() -> None:
    """By what the store declares, before there is anything that could set or delete."""
    with pytest.raises(UnsuitableStoreError, match="no atomic conditional commits"):
        Scope(NonAtomicStore())


# --- transact -----------------------------------------------------------------------------------------------------


async def test_a_transaction_sees_data_version_and_store_time(scope: Scope, clock: VirtualClock) -> None:
    """A typed value is seen as the data that it is stored as."""
    state = AtomicState(scope, scope.key("state", "it"), type=Account, initial=Account("anna"))
    clock.advance(5)
    assert await state.transact(lambda *seen: (KEEP, seen[:2])) == ({"owner": "anna", "balance": 0}, 0)
    first = await state.transact(lambda _value, _version, at: ({"owner": "ben", "balance": 1}, at))
    clock.advance(2)
    again = await state.transact(lambda _value, _version, at: (KEEP, at))
    assert (again - first, await state.get()) == (2_000_000, Account("ben", 1))


async def test_a_transaction_writes_nothing_of_another_type(scope: Scope) -> None:
    """What the next reader could not read is refused."""
    state = AtomicState(scope, scope.key("state", "it"), type=Account)
    with pytest.raises(EncodeError):
        await state.transact(lambda _value, _version, _at: ({"owner": 5}, None))
    assert (await state.read()).version == 0


# --- events -------------------------------------------------------------------------------------------------------


async def test_a_listener_is_told_of_changes_until_it_unsubscribes(scope: Scope) -> None:
    """Value, previous value and version, in order; None stands for nothing."""
    state, told = state_of(scope, initial=1), list[Any]()
    stop = state.on(StateChanged, told.append)
    versions = [await state.set(2), await state.delete()]
    stop()
    stop()
    await state.set(3)
    assert told == [StateChanged(2, 1, versions[0]), StateChanged(None, 2, versions[1])]


async def test_a_refused_write_is_no_change(scope: Scope) -> None:
    """Nobody is told of what did not happen, nor of a decision to keep the value."""
    state, told = state_of(scope, initial=1), list[Any]()
    state.on(StateChanged, told.append)
    with pytest.raises(StaleWriteError):
        await state.set(2, expected_version=9)
    await state.transact(lambda *_: (KEEP, None))
    assert told == []


async def test_conflicts_and_exhaustion_are_told(scope: Scope) -> None:
    """Each lost try, and the end of all tries."""
    state, other, told = state_of(scope, max_retries=2), state_of(scope, initial=0), list[Any]()
    state.on(StateConflict, told.append)
    state.on(StateExhausted, told.append)
    with pytest.raises(AtomicStateConflictError):
        await state.update(outrunning(other))
    name = str(state.key)
    assert told == [StateConflict(name, 1), StateConflict(name, 2), StateExhausted(name, 2)]


async def test_a_listener_that_raises_disturbs_nobody(scope: Scope, caplog: pytest.LogCaptureFixture) -> None:
    """The write is done, the next listener is told, and the log names the failure without the value."""
    state, told = state_of(scope), list[Any]()
    state.on(StateChanged, lambda event: 1 // (event.version * 0))
    state.on(StateChanged, told.append)
    with caplog.at_level(logging.ERROR, "standfast"):
        await state.set({"secret": 41})
    assert len(told) == 1
    assert "ZeroDivisionError" in caplog.text
    assert "41" not in caplog.text


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_writer_still_tells_what_it_wrote(scope: Scope, steps: int) -> None:
    """A write that was under way when its caller was cancelled is told like any other, a withdrawn one is not."""
    state, told = state_of(scope), list[Any]()
    state.on(StateChanged, told.append)
    task = asyncio.create_task(state.set(1))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert [event.value for event in told] == ([1] if await state.get() == 1 else [])


async def test_events_can_be_iterated(scope: Scope) -> None:
    """A reader gets what happened since it entered, whether it was waiting then or not."""
    state, seen = state_of(scope), list[StateEvent]()
    await state.set(0)

    async def read() -> None:
        async with state.events() as events:
            entered.set()
            async for event in events:
                seen.append(event)
                if len(seen) == 2:
                    break

    entered = asyncio.Event()
    reader = asyncio.create_task(read())
    await entered.wait()
    await state.set(1)
    await state.set(2)
    await reader
    assert [event.value for event in seen if isinstance(event, StateChanged)] == [1, 2]


async def test_a_slow_reader_is_told_how_much_it_missed(scope: Scope) -> None:
    """The backlog is bounded: the oldest are dropped, and counted."""
    state = state_of(scope)
    async with state.events(limit=2) as events:
        for value in range(5):
            await state.set(value)
        read = [await anext(events) for _ in range(3)]
    assert read[0] == StateEventsDropped(3)
    assert [event.value for event in read[1:] if isinstance(event, StateChanged)] == [3, 4]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
async def test_an_impossible_backlog_is_refused(scope: Scope, limit: Any) -> None:
    """A reader keeps at least one event."""
    with pytest.raises(InvalidArgumentError, match="limit"):
        state_of(scope).events(limit=limit)
