"""A space of blocking code: records, states, rates, runs, hints, and its end."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast import blocking
from standfast.errors import LeaseLostError, RateTimeoutError, RunHeldError, StoreClosedError
from standfast.locks import StateChanged
from standfast.stores import Commit, Decision, Put, Wake
from tests.unit.blocking.scene import PATIENCE, beside, until_waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from standfast.blocking import Space


def test_records_are_written_and_read(space: Space) -> None:
    """A commit is there when it returns; scans and decisions see it."""
    key = space.key("note", "1")
    assert isinstance(space.commit(Put(key, b"hello")), Commit)

    assert space.read(key).records[key].value == b"hello"
    assert list(space.scan(*space.key("note").within(), limit=5).records) == [key]
    assert space.update([key], lambda seen: Decision(len(seen.records))).answer == 1


def test_a_space_says_who_it_is() -> None:
    """What it was opened with, and its own presence."""
    with blocking.open("memory://", namespace="prod", tenant="acme", lease="10s") as space:
        assert (space.namespace, space.tenant, space.lease) == ("prod", "acme", 10.0)
        assert space.presence == space.key("presence", space.presence_name)
        assert space.key_for("line", "a") != space.key_for("line", "b")


def test_hints_wake_a_waiting_thread(space: Space) -> None:
    """A thread that watches hears of a wake; one that waits too long hears nothing."""
    place = space.key("bell")
    with space.watch(place) as watch:
        assert watch.wait(0.001) is None
        heard = beside(watch.wait)
        space.commit(Put(space.key("note"), b""), wake=[Wake(place)])

        hint = heard.result(PATIENCE)
    assert hint is not None
    assert place in hint.about


def test_states_are_shared_by_threads(space: Space) -> None:
    """Every change is whole, whichever thread makes it."""
    visits = space.state.shared("visits", type=int, initial=0)
    for done in [beside(lambda: [visits.increment() for _ in range(25)]) for _ in range(4)]:
        done.result(PATIENCE)

    assert visits.get() == 100
    assert visits.decrement(10) == 90
    assert visits.update(lambda value: (value or 0) * 2) == 180
    assert visits.delete() > visits.read().version - 1
    assert visits.get() is None


def test_lists_and_dicts_are_changed_in_place(space: Space) -> None:
    """The shorthands of states work here, too."""
    queue = space.state.run("run-1", "queue", type=list[int])
    assert queue.append(1, 2, 3) == [1, 2, 3]
    assert (queue.remove_first(), queue.remove_last()) == (1, 3)
    settings = space.state.execution("run-1", "settings", type=dict[str, int])
    assert settings.merge({"a": 1}) == {"a": 1}
    assert space.state.workflow("checkout", "x").transact(lambda value, _version, _at: ("y", value)) is None

    assert (space.state.clear_run("run-1"), space.state.clear_execution("run-1")) == (1, 1)


def test_events_of_a_state_are_heard(space: Space) -> None:
    """A listener is called, and a reader in another thread is given each change in order."""
    visits = space.state.shared("visits", type=int, initial=0)
    heard: list[int | None] = []
    end = visits.on(StateChanged, lambda event: heard.append(event.value))
    with visits.events() as events:
        visits.increment()
        visits.increment()
        read = [event.value for event in islice(events, 2) if isinstance(event, StateChanged)]
    end()
    visits.increment()

    assert heard == read == [1, 2]


def test_a_reader_of_a_state_ends_when_another_thread_leaves_it(space: Space) -> None:
    """What was kept for it is read first."""
    visits = space.state.shared("visits", type=int, initial=0)
    events, read = visits.events(), list[object]()
    events.__enter__()
    reader = threading.Thread(target=lambda: read.extend(events))
    reader.start()
    visits.increment()
    events.__exit__()
    reader.join(10)

    assert not reader.is_alive()
    assert [event.value for event in read if isinstance(event, StateChanged)] == [1]


def test_a_rate_is_limited(space: Space) -> None:
    """The limiter of a space lets through what it should."""
    mails = space.rate_limiter("mails", interval="1 hour", capacity=2)
    with mails.limited():
        assert mails.inspect().tokens == 1
    mails.acquire()
    with pytest.raises(RateTimeoutError):
        mails.acquire(timeout="10ms")
    assert not mails.try_acquire(waiter="w").granted
    assert mails.withdraw("w")
    mails.close_for("1s")
    mails.open_again()
    mails.change_rate()


def test_a_run_is_leased_to_one(space: Space) -> None:
    """Of two activations one gets the run, until it gives it up."""
    lease = space.run_locks.try_acquire("checkout", "run-1", lease="30s")
    assert lease is not None
    lease.check()
    assert space.run_locks.try_acquire("checkout", "run-1") is None
    assert lease.renew("40s")
    assert space.run_locks.renew("checkout", "run-1", token=lease.token)
    info = space.run_locks.get("checkout", "run-1")
    assert info is not None
    assert lease.holder == info.holder
    assert lease.release()
    assert lease.lost.is_set()
    with pytest.raises(LeaseLostError):
        lease.check()


def test_a_run_is_held_for_a_block(space: Space) -> None:
    """Another activation is refused while the block runs."""
    with space.run_locks.hold("checkout", "run-1") as hold:
        assert hold.fence > 0
        with pytest.raises(RunHeldError), space.run_locks.hold("checkout", "run-1", owner="another"):
            pass
    assert space.run_locks.get("checkout", "run-1") is None
    assert space.run_locks.release("checkout", "run-1", token="nobody's") is False  # noqa: S106 -- no password


def test_locks_by_hand_are_driven_by_threads(space: Space) -> None:
    """A lock in a state of the space, taken, looked at and released."""
    lock = blocking.DurableSemaphore(1, lease="30s")
    slot = space.state.shared("lock")
    place = lock.acquire(slot, "one", timeout="1s")
    assert not lock.try_acquire(slot, "two").acquired
    assert lock.withdraw(slot, "two")
    assert lock.renew(slot, "one", fence=place.fence)
    space.state.shared("x").set(1, guard=lock.guard(slot, "one", place.fence))
    found = lock.inspect(slot)
    assert found is not None
    assert [each.holder_id for each in found.holders] == ["one"]
    assert lock.resize(slot) == 1
    assert lock.release(slot, "one")
    assert not lock.force_release(slot, "one")
    assert blocking.DurableMutex().acquire(slot, "three").acquired


def test_the_lines_in_use_are_listed(space: Space) -> None:
    """One can iterate over what is held, and stop in between."""
    with space.mutex("a").hold(), space.mutex("b").hold():
        assert [line.key for line in space.lines()] == ["a", "b"]
        assert next(iter(space.lines())).key == "a"
    assert list(space.lines()) == []


def test_hooks_hear_what_happens() -> None:
    """Hooks are called on Standfast's own thread."""
    heard: list[tuple[str, str]] = []

    def hook(event: object) -> None:
        heard.append((type(event).__name__, threading.current_thread().name))

    with blocking.open("memory://", hooks=[hook]) as space:
        mutex = space.mutex("m")
        with mutex.hold(on_lost="tell") as hold:
            mutex.force_release(space.explain("m").holders[0].entry)
            hold.lost.wait(PATIENCE)

    assert ("LeaseLost", "standfast-blocking") in heard


def test_all_spaces_share_one_thread(space: Space) -> None:
    """Another space starts no other loop."""
    with blocking.open("memory://"), space.mutex("m").hold():
        names = [thread.name for thread in threading.enumerate()]

    assert names.count("standfast-blocking") == 1


def test_closing_tells_those_who_wait() -> None:
    """A thread in line is told that the space was closed; closing again is fine."""
    space, other = blocking.open("memory://closing"), blocking.open("memory://closing")
    with other.mutex("m").hold():
        waiter = beside(lambda: space.mutex("m").hold().__enter__())
        until_waiting(other, "m")
        space.close()
        space.close()

        assert isinstance(waiter.exception(PATIENCE), StoreClosedError)
    other.close()


def test_a_closed_space_says_so(space: Space) -> None:
    """What was closed cannot be used, by whichever name."""
    mutex = space.mutex("m")
    space.close()

    for attempt in (mutex.hold, lambda: space.mutex("m"), lambda: space.namespace, space.lines().__next__):
        with pytest.raises(StoreClosedError, match="open a new one"):
            attempt()


def test_a_hold_that_outlives_its_space_is_lost() -> None:
    """Closing a space takes away what its threads hold, and tells them."""
    space = blocking.open("memory://")
    closing: list[Future[None]] = []

    def body() -> None:
        with space.mutex("m").hold() as hold:
            closing.append(beside(space.close))
            assert hold.lost.wait(PATIENCE)
            with pytest.raises(LeaseLostError):
                hold.check()

    with pytest.raises(LeaseLostError, match="closed"):
        body()
    closing[0].result(PATIENCE)


def test_the_front_page_has_it() -> None:
    """``sf.blocking`` is there without an import of its own."""
    assert sf.blocking is blocking
