"""Taking the first step of something at once: most of what is awaited does not have to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

T = TypeVar("T")


class Rest(Generic[T]):
    """What is left of something whose first step was taken and has to wait; await it in the same task.

    Args:
        steps: What takes the steps.
        waits_for: What the first of them waits for.
    """

    __slots__ = ("_steps", "_waits_for")

    def __init__(self, steps: Generator[Any, Any, T], waits_for: object) -> None:
        self._steps: Final = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waits_for = self._steps, self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as problem:  # noqa: BLE001 -- whatever is raised where it waits is its own to handle
                try:
                    waits_for = steps.throw(problem)
                except StopIteration as done:
                    return cast("T", done.value)
            else:
                return (yield from steps)


@final
class Begun(Rest[T]):
    """Something whose first step was taken; await it for the rest if it is not done.

    What has to be prepared in case that it takes long need not be prepared for what is done at once: timers, and
    tasks that watch. They would cost more than all else that is done for most requests.

    Attributes:
        is_done: It did not have to wait.
        value: What it returned then.
    """

    __slots__ = ("is_done", "value")

    def __init__(self, work: Awaitable[T]) -> None:
        steps = work.__await__()
        try:
            super().__init__(steps, next(steps))
            self.is_done = False
        except StopIteration as done:
            self.is_done = True
            self.value: T = done.value
