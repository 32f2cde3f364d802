"""Threads that are stopped anywhere while they use an engine do it no harm, and no run is lost."""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.sizes import rounds
from tests.unit.blocking.engine_scene import doubles, engine
from tests.unit.blocking.scene import PATIENCE

if TYPE_CHECKING:
    from standfast import blocking

_never = threading.Event()


class Stopped(BaseException):
    """What a task queue raises in a thread whose time is over."""


def stop(thread: threading.Thread) -> None:
    """Raise in another thread, as task queues do."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))


def start_and_wait(ours: blocking.Engine, numbers: count[int]) -> None:
    """Use an engine until stopped."""
    with contextlib.suppress(Stopped):
        while True:
            assert ours.start(doubles, number := next(numbers)).result() == 2 * number


@pytest.mark.heavy
def test_interruptions_at_any_moment_lose_no_run(seed: int) -> None:
    """Threads are stopped while they start runs and wait for them: each run that was started ends well."""
    chance, numbers = random.Random(seed), count()
    with engine("memory://") as ours:
        for _ in rounds("interrupted engines", full=2_000, quick=50):
            threads = [threading.Thread(target=start_and_wait, args=(ours, numbers)) for _ in range(2)]
            for thread in threads:
                thread.start()
            _never.wait(chance.random() / 100)
            for thread in threads:
                while thread.is_alive():  # one that is stopped in a destructor does not hear of it
                    stop(thread)
                    thread.join(0.6)
        assert ours.start(doubles, 1).result(timeout=PATIENCE) == 2
        for run in ours.list(status={"pending", "running", "suspended"}, limit=1_000).runs:
            ours.result(run.id, timeout=PATIENCE)
        assert ours.list(status="failed").runs == ()
