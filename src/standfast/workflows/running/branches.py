"""The branches of a run: the main one, and those that ``ctx.gather`` and ``ctx.race`` start."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import DuplicateStepIdError, InvalidWorkflowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.clock import Instant
    from standfast.errors import LeaseLostError
    from standfast.workflows.running.control import RunCancelled

LONGEST_ID: Final = 200


@final
class Wait:
    """What a branch waits for.

    Attributes:
        what: In words, for people.
        until: When it is over at the latest; then its result is :data:`OVER`.
        look: Finds out whether it has come true, and then sets its result; called when there is news for the run.
        predicate: Tells whether it has come true; asked after each update.
        line: The address of the line to look after meanwhile, if it waits in one.
        as_of: How often news had been looked for when the store was asked whether there is anything to wait for. None:
            it was not asked. What has come since was not for this wait, which was not there yet.
        future: Its result.
    """

    __slots__ = ("as_of", "future", "line", "look", "predicate", "until", "what")

    def __init__(
        self,
        what: str,
        until: Instant | None = None,
        look: Callable[[Wait], Awaitable[None]] | None = None,
        *,
        predicate: Callable[[], object] | None = None,
        line: tuple[str, ...] = (),
        as_of: int | None = None,
    ) -> None:
        self.what, self.until, self.look, self.predicate, self.line = what, until, look, predicate, line
        self.as_of = as_of
        self.future: Final[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()

    def settle(self, result: object) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(result)

    def interrupt(self, problem: BaseException) -> None:
        """End the wait by an exception."""
        if not self.future.done():
            self.future.set_exception(problem)
            self.future.exception()  # whoever waits for it may have gone


def is_due(predicate: Callable[[], object]) -> bool:
    """Tell whether a predicate is true, or raises."""
    try:
        return bool(predicate())
    except Exception:  # noqa: BLE001 -- whatever it raises, it does so again where the code waits for it
        return True


class Over:
    """The result of a wait whose time is over."""


OVER: Final = Over()


@final
class Branch:
    """One line of execution of a run.

    Attributes:
        path: Tells it from the others, whatever order they run in; empty for the main one.
        task: The task that runs it.
        children: How many branches it waits for; while there are any it does nothing itself.
        wait: What it waits for.
        is_in_effect: It runs a step at the moment.
        step: The id of the step that it runs, or has run last.
        is_interrupted: Its step was told to stop.
        cancel: What is to be raised at its next operation.
        is_told: It was told that the run is cancelled, and cleans up.
        lost_in: The paths of the groups in which it was told that another branch has ended first.
        lost: That a lock is gone which it relies on; raised at its next operation.
    """

    __slots__ = (
        "_groups",
        "_ids",
        "_names",
        "cancel",
        "children",
        "is_in_effect",
        "is_interrupted",
        "is_told",
        "lost",
        "lost_in",
        "path",
        "step",
        "task",
        "wait",
    )

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.task: asyncio.Task[Any] | None = None
        self.children = 0
        self.wait: Wait | None = None
        self.is_in_effect = self.is_interrupted = self.is_told = False
        self.step = ""
        self.cancel: RunCancelled | None = None
        self.lost: LeaseLostError | None = None
        self.lost_in: Final[set[str]] = set()
        self._names: Final[dict[str, int]] = {}
        self._ids: Final[set[str]] = set()
        self._groups = 0

    def next_id(self, name: str) -> str:
        """Return the id of the next operation with that name: ``charge``, then ``charge#2``."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return self.placed(name if count == 1 else f"{name}#{count}")

    def explicit_id(self, step_id: str) -> str:
        """Return the id of an operation that the user has named; a second one of that name is refused."""
        if not step_id or len(step_id) > LONGEST_ID or "/" in step_id or "#" in step_id:
            problem = f"a step id is 1 to {LONGEST_ID} characters without / and #"
            raise InvalidWorkflowError(f"step id {step_id!r:.220}", problem)
        if step_id in self._ids or step_id in self._names:
            raise DuplicateStepIdError(step_id)
        self._ids.add(step_id)
        self._names[step_id] = 1
        return self.placed(step_id)

    def next_group(self) -> str:
        """Return the path of a group of branches that start here."""
        self._groups += 1
        return self.placed(f"g{self._groups}")

    def placed(self, name: str) -> str:
        """Return an id with this branch's path in front of it, which ends at the last slash."""
        name = name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name
        return f"{self.path}/{name}" if self.path else name

    def interrupt(self) -> None:
        """Tell the step that it runs to stop."""
        if self.is_in_effect and not self.is_interrupted and self.task is not None:
            self.is_interrupted = True
            self.task.cancel()


CURRENT: Final[ContextVar[Branch | None]] = ContextVar("standfast_branch", default=None)
"""The branch whose code is running."""
