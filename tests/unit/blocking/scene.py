"""Threads that do things to each other, without a sleep."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from standfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast import blocking

T = TypeVar("T")

PATIENCE = 20.0
_never = threading.Event()


def beside(work: Callable[[], T]) -> Future[T]:
    """Run something in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:  # noqa: BLE001 -- it belongs to the test
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(is_so: Callable[[], bool]) -> None:
    """Return when something is so; look every few milliseconds."""
    deadline = monotonic() + PATIENCE
    while not is_so():
        assert monotonic() < deadline, "it did not come to be so"
        _never.wait(0.005)


def until_waiting(space: blocking.Space, key: str, count: int = 1) -> None:
    """Return when so many wait for a key."""
    until(lambda: space.explain(key).waiting == count)
