"""Locks of blocking code: between threads, with the same answers as those of an async space."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast import blocking
from standfast.errors import (
    HoldTimeoutError,
    InvalidArgumentError,
    LeaseLostError,
    ReentryError,
    StaleWriteError,
    TooHeavyError,
    UsageError,
    WaitCycleError,
    WouldWaitError,
)
from tests.unit.blocking.scene import PATIENCE, beside, until_waiting

if TYPE_CHECKING:
    from typing import Any

    from standfast.blocking import Space


def test_threads_exclude_each_other(space: Space) -> None:
    """Eight threads that add to a plain number, each read and write apart, lose nothing."""
    counted = [0]
    barrier = threading.Barrier(8)

    def add() -> None:
        barrier.wait()
        for _ in range(20):
            with space.mutex("counter").hold():
                seen = counted[0]
                space.read(space.key("note"))  # lets the others run
                counted[0] = seen + 1

    for done in [beside(add) for _ in range(8)]:
        done.result(PATIENCE)
    assert counted == [160]


def test_a_thread_that_takes_a_mutex_twice_is_told_at_once_where(space: Space) -> None:
    """Waiting for oneself would never end; the error names both places in the user's code."""
    mutex = space.mutex("m")
    with mutex.hold(), pytest.raises(ReentryError) as refused, mutex.hold():
        pass

    assert __file__ in refused.value.taken
    assert __file__ in refused.value.again


def test_threads_that_wait_for_each_other_crosswise_are_found(space: Space) -> None:
    """Of two threads that would wait for ever, one is refused and the other goes on."""
    barrier = threading.Barrier(2)

    def cross(first: str, second: str) -> str:
        with space.mutex(first).hold():
            barrier.wait()
            try:
                with space.mutex(second).hold(timeout=PATIENCE):
                    return "went on"
            except WaitCycleError:
                return "refused"

    one, other = beside(lambda: cross("a", "b")), beside(lambda: cross("b", "a"))

    assert sorted([one.result(PATIENCE), other.result(PATIENCE)]) == ["refused", "went on"]


def test_a_timeout_leaves_nobody_in_line(space: Space) -> None:
    """After the time is over nothing is held, and nobody waits."""
    with space.mutex("m").hold(owner="another"):
        with pytest.raises(HoldTimeoutError), space.mutex("m").hold(timeout="20ms"):
            pass

        assert space.explain("m").waiting == 0


def test_trying_does_not_wait(space: Space) -> None:
    """``try_hold`` takes what is free, and is refused at once what is not."""
    with space.mutex("m").try_hold(owner="another"), pytest.raises(WouldWaitError), space.mutex("m").try_hold():
        pass


def test_a_waiter_gets_the_mutex_when_it_is_left(space: Space) -> None:
    """Leaving the block hands over to the thread that waits, with a higher fence."""
    with space.mutex("m").hold() as first:
        waiter = beside(lambda: fence_of(space.mutex("m")))
        until_waiting(space, "m")

    assert waiter.result(PATIENCE) > first.fence


def fence_of(mutex: blocking.Mutex) -> int:
    """Take a mutex and return the fence."""
    with mutex.hold() as hold:
        return hold.fence


def test_a_semaphore_hands_out_its_permits(space: Space) -> None:
    """As many as there are, of any weight; resizing makes more."""
    gate = space.semaphore("gate", permits=2)
    with gate.hold(2):
        with pytest.raises(WouldWaitError), gate.try_hold(owner="another"):
            pass
        gate.resize(3)
        with space.semaphore("gate", permits=3).try_hold(owner="another"):
            pass
    gate.forget_size()
    with pytest.raises(TooHeavyError), gate.hold(3):
        pass


def test_holders_of_one_mode_share(space: Space) -> None:
    """Readers go together, a writer alone; an unknown mode is refused where it was named."""
    graph = space.mode_lock("graph", modes=("read",), alone=("write",))
    with graph.hold("read", owner="another"), graph.hold("read") as hold:
        assert hold.mode == "read"
        with pytest.raises(WouldWaitError), graph.try_hold("write", owner="a third"):
            pass
    with pytest.raises(InvalidArgumentError):
        graph.hold("reed")


def test_a_function_can_be_decorated(space: Space) -> None:
    """Each call takes the lock anew and gives it back, also when it raises."""

    @space.mutex("m").hold()
    def divide(by: int) -> float:
        """Divide."""
        assert len(space.explain("m").holders) == 1
        return 1 / by

    assert divide(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        divide(0)
    assert divide.__doc__ == "Divide."
    assert space.explain("m").holders == ()


def test_a_coroutine_function_cannot_be_decorated(space: Space) -> None:
    """It would hold the lock while a coroutine is made, not while it runs."""

    async def work() -> None:
        pass

    with pytest.raises(UsageError, match="work"):
        space.mutex("m").hold()(work)


def test_a_body_whose_lock_was_taken_away_is_told_and_leaving_raises(space: Space) -> None:
    """The body runs on, ``check`` raises in it, and so does leaving the block."""
    mutex = space.mutex("m")

    def body() -> None:
        with mutex.hold() as hold:
            assert not hold.is_lost
            mutex.force_release(space.explain("m").holders[0].entry)
            assert hold.lost.wait(PATIENCE)
            assert hold.lost.is_set()
            with pytest.raises(LeaseLostError, match="by force"):
                hold.check()

    with pytest.raises(LeaseLostError, match="by force"):
        body()


def test_an_error_of_the_body_is_not_hidden_by_the_loss(space: Space) -> None:
    """What the body raises is raised, whether or not the lock was lost meanwhile."""
    mutex = space.mutex("m")

    def body() -> float:
        with mutex.hold():
            mutex.force_release(space.explain("m").holders[0].entry)
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        body()


def test_a_body_that_only_wants_to_be_told_leaves_quietly(space: Space) -> None:
    """With ``on_lost="tell"`` losing the lock is no error."""
    mutex = space.mutex("m")
    with mutex.hold(on_lost="tell") as hold:
        mutex.force_release(space.explain("m").holders[0].entry)
        hold.lost.wait(PATIENCE)

    assert hold.is_lost


def test_a_thread_cannot_be_cancelled(space: Space) -> None:
    """The async option that cancels a body is refused, with what there is instead."""
    with pytest.raises(InvalidArgumentError, match="'raise' or 'tell'"):
        space.mutex("m").hold(on_lost="cancel")  # type: ignore[arg-type] # the mistake under test


def test_an_unknown_option_is_refused_before_the_block(space: Space) -> None:
    """A mistake is told where it was made."""
    with pytest.raises(InvalidArgumentError, match="timeot"):
        space.mutex("m").hold(timeot=1)  # type: ignore[call-arg] # the mistake under test


def test_waiting_for_the_loss_ends_when_the_block_is_left(space: Space) -> None:
    """A thread that watches over a hold is not left waiting when all went well."""
    with space.mutex("m").hold() as hold:
        watcher = beside(hold.lost.wait)
        assert not hold.lost.wait("10ms")

    assert watcher.result(PATIENCE) is False


def test_a_guard_refuses_writes_of_a_hold_that_is_over(space: Space) -> None:
    """The guard of a hold is part of the commit."""
    balance = space.state.shared("balance", type=int, initial=0)
    with space.mutex("m").hold() as hold:
        balance.set(1, guard=hold.guard)

    with pytest.raises(StaleWriteError):
        balance.set(2, guard=hold.guard)


def test_a_holding_serves_one_block_at_a_time(space: Space) -> None:
    """Entering twice and leaving without entering are refused."""
    holding = space.mutex("m").hold()
    with holding, pytest.raises(UsageError):
        holding.__enter__()
    with pytest.raises(UsageError):
        holding.__exit__(None, None, None)
    with holding as hold:
        assert hold.key == "m"


def test_a_waiter_can_be_withdrawn_by_an_operator(space: Space) -> None:
    """The thread that waits is told, and nobody stands in line any more."""
    with space.mutex("m").hold():
        waiter = beside(lambda: fence_of(space.mutex("m")))
        until_waiting(space, "m")
        assert space.mutex("m").withdraw(space.mutex("m").explain().waiters[0].entry)

        assert isinstance(waiter.exception(PATIENCE), sf.StandfastError)


def test_both_faces_stand_in_one_line() -> None:
    """A lock that blocking code holds is taken for an async space, too."""

    async def try_it(space: sf.Space) -> str:
        try:
            async with space.mutex("m").try_hold():
                return "free"
        except WouldWaitError:
            return "taken"

    with blocking.open("memory://both-faces") as space:
        with space.mutex("m").hold():
            assert space.run(try_it) == "taken"
        assert space.run(try_it) == "free"


def test_a_lock_that_is_entered_itself_says_how_to_hold_it(space: Space) -> None:
    """Forgetting ``hold`` takes nothing."""
    locks: list[Any] = [space.mutex("a"), space.semaphore("b", permits=2), space.mode_lock("c", modes=("read",))]
    for lock in locks:
        with pytest.raises(UsageError, match=r"; write with \w+\.hold\("), lock:
            pass
        assert not lock.explain().holders
