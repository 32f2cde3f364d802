"""A thread that is interrupted while it waits leaves nothing behind: no ghost in line, and no permit."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from standfast import blocking
from standfast.blocking import _portal as portal
from standfast.blocking import hold as hold_module
from standfast.blocking._portal import BackgroundCall, background, call
from standfast.locks import Hold
from tests.sizes import rounds
from tests.unit.blocking.scene import PATIENCE, beside, until, until_waiting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from standfast.blocking import Space


_never = threading.Event()


class Stopped(BaseException):
    """What a task queue raises in a thread whose time is over."""


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """A program that a shell has started in the background ignores Ctrl-C; what is tested here is one that does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_main_thread() -> None:
    """Press Ctrl-C."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def stop(thread: threading.Thread) -> None:
    """Raise in another thread, as task queues do."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))


def test_ctrl_c_takes_a_waiter_out_of_the_line(space: Space) -> None:
    """When KeyboardInterrupt arrives, nobody waits any more, and the lock can be had once it is free."""

    def interrupt() -> None:
        until_waiting(space, "m")
        interrupt_main_thread()

    with space.mutex("m").hold(owner="another"):
        done = beside(interrupt)
        with pytest.raises(KeyboardInterrupt), space.mutex("m").hold():
            pass
        assert space.explain("m").waiting == 0
    done.result(PATIENCE)
    with space.mutex("m").try_hold():
        pass


def test_an_exception_from_another_thread_takes_a_waiter_out_of_the_line(space: Space) -> None:
    """A time limit of a task queue works on a thread that waits for a lock."""
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            with space.mutex("m").hold():
                pass
        except Stopped as stopped:
            seen.append(stopped)
            assert space.explain("m").waiting == 0

    with space.mutex("m").hold():
        thread = threading.Thread(target=wait)
        thread.start()
        until_waiting(space, "m")
        stop(thread)
        thread.join(PATIENCE)

    assert len(seen) == 1


def test_a_rate_limiters_waiter_leaves_its_line_too(space: Space) -> None:
    """Whatever is waited for, an interruption ends the wait cleanly."""
    limiter = space.rate_limiter("r", interval="1 hour")
    limiter.acquire()

    def interrupt() -> None:
        until(lambda: len(limiter.inspect().waiters) == 1)
        interrupt_main_thread()

    done = beside(interrupt)
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire()

    assert limiter.inspect().waiters == ()
    done.result(PATIENCE)


def test_what_was_granted_to_an_interrupted_thread_is_given_back(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption between the grant and the block gives the lock back."""
    result = BackgroundCall.result

    def interrupted(self: BackgroundCall[Any]) -> object:
        found = result(self)
        if isinstance(found, Hold):
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patched:
        patched.setattr(BackgroundCall, "result", interrupted)
        with pytest.raises(KeyboardInterrupt), space.mutex("m").hold():
            pass

    assert space.explain("m").holders == ()


def test_a_block_that_could_not_be_left_is_left_all_the_same(space: Space) -> None:
    """An interruption that keeps ``__exit__`` from running does not keep the lock."""
    holding = space.mutex("m").hold()
    holding.__enter__()
    del holding
    gc.collect()

    until(lambda: space.explain("m").holders == ())


def test_an_interrupted_release_is_finished_before_the_interruption_is_raised(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a lock is given back: it is given back."""
    wait = BackgroundCall.wait
    pressed: list[BackgroundCall[Any]] = []

    def interrupted(self: BackgroundCall[Any], seconds: float | None = None) -> bool:
        if self._shielded and not pressed:
            pressed.append(self)
            raise KeyboardInterrupt
        return wait(self, seconds)

    with pytest.raises(KeyboardInterrupt), space.mutex("m").hold():
        monkeypatch.setattr(BackgroundCall, "wait", interrupted)
    monkeypatch.undo()

    assert pressed[0]._is_over
    assert space.explain("m").holders == ()


def test_an_interruption_at_any_line_of_entering_and_leaving_leaves_nothing_behind(space: Space) -> None:
    """A signal handler raises wherever it is called; a lock that stayed would be renewed for as long as we live."""
    number, is_done = 0, False
    while not is_done:
        with contextlib.suppress(Stopped):
            _raise_at(number)
            try:
                with space.mutex("m").hold():
                    pass
                is_done = True
            finally:
                sys.settrace(None)
        until(lambda: space.explain("m").holders == ())
        number += 1
    assert number > 50


def _raise_at(number: int) -> None:
    """Raise in this thread at a line of the blocking classes, or at the call of a function, counted from now on."""
    left, files = iter(range(number)), (portal.__file__, hold_module.__file__)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files or frame.f_code.co_name == "__del__":  # Python passes over those
            return None
        if event in ("call", "line") and next(left, None) is None:
            raise Stopped
        return trace

    sys.settrace(trace)


def test_an_impatient_user_need_not_wait_for_the_withdrawal(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """A withdrawal that takes long goes on by itself; the thread waits for it only for so long."""
    monkeypatch.setattr(portal, "WITHDRAWN_WITHIN", 0.01)
    release = threading.Event()
    here = background()
    left: list[str] = []

    async def stubborn() -> None:
        try:
            await _forever()
        finally:
            while not release.is_set():
                await _turn()
            left.append("at last")

    asked = BackgroundCall(here, stubborn)
    asked.begin()
    asked.abandon()
    assert left == []

    release.set()
    until(lambda: left == ["at last"])
    assert space.explain("m").holders == ()


async def _forever() -> None:
    await asyncio.Event().wait()


async def _turn() -> None:
    await asyncio.sleep(0.001)


def test_a_withdrawal_waits_for_what_the_cancelled_call_has_left_to_others() -> None:
    """A task that a cancelled call starts, to clean up after it, is waited for."""
    here = background()
    began, cleaned = threading.Event(), threading.Event()
    tasks: list[asyncio.Task[None]] = []

    async def clean() -> None:
        for _ in range(20):
            await _turn()
        cleaned.set()

    async def work() -> None:
        try:
            began.set()
            await _forever()
        finally:
            tasks.append(here.loop.create_task(clean()))

    asked = BackgroundCall(here, work)
    asked.begin()
    assert began.wait(PATIENCE)
    asked.abandon()

    assert cleaned.is_set()


def test_an_error_inside_is_raised_outside_as_it_is() -> None:
    """What the loop raises reaches the thread that asked, whatever kind it is."""

    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        call(background(), leave)


def test_an_interrupted_opening_closes_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a space is opened leaves no open store."""
    before = set(background().spaces)
    result = BackgroundCall.result

    def interrupted(self: BackgroundCall[Any]) -> object:
        result(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BackgroundCall, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            blocking.open("memory://")

    assert background().spaces == before


@pytest.mark.heavy
def test_interruptions_at_any_moment_leave_nothing_behind(seed: int) -> None:
    """Threads that are stopped anywhere in taking, waiting, holding and giving back keep nobody out."""
    chance = random.Random(seed)

    def take_and_give_back(space: Space) -> None:
        with contextlib.suppress(Stopped):
            while True:
                with space.mutex("m").hold():
                    pass

    with blocking.open("memory://") as space:
        for _ in rounds("interruptions", full=5_000, quick=100):
            threads = [threading.Thread(target=take_and_give_back, args=(space,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            _never.wait(chance.random() / 200)
            for thread in threads:
                while thread.is_alive():  # one that is stopped in a destructor does not hear of it
                    stop(thread)
                    thread.join(0.6)
            until(lambda: space.explain("m").holders == () and space.explain("m").waiting == 0)
