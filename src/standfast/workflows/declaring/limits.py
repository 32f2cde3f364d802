"""Start limits: how many runs may be unfinished at a time, and what happens to one too many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from standfast.durations import seconds
from standfast.errors import InvalidWorkflowError
from standfast.locks.algebra.line import MOST_HOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.durations import Duration

OnLimit: TypeAlias = Literal["reject", "queue", "cancel_running", "join"]

_CHOICES: Final = ("reject", "queue", "cancel_running", "join")


@final
class Limit:
    """At most so many unfinished runs at a time: of the whole workflow, or of each key.

    Args:
        max: How many; 400 at most, since all who hold a place share one record. For more, split it by ``key``.
        key: A function of the workflow's arguments that returns the key; without one, all runs count together.
        on_limit: What happens to a start beyond that: ``"reject"`` raises
            :class:`~standfast.errors.WorkflowConcurrencyLimitExceededError`, ``"queue"`` lets it wait its turn,
            ``"cancel_running"`` cancels the oldest unfinished run and takes its place, ``"join"`` returns the handle of
            the unfinished run.
        max_queued: With ``"queue"``: how many may wait before starts are rejected.
        ttl: With ``"queue"``: how long one may wait before it is cancelled.
    """

    __slots__ = ("key", "max", "max_queued", "on_limit", "ttl")

    def __init__(
        self,
        max: int,  # noqa: A002 -- the word that users know
        *,
        key: Callable[..., str] | None = None,
        on_limit: OnLimit = "reject",
        max_queued: int | None = None,
        ttl: Duration | None = None,
    ) -> None:
        if type(max) is not int or max < 1:
            raise InvalidWorkflowError("Limit", f"max is {max!r}; it must be a whole number, at least 1")
        if max > MOST_HOLDERS:
            raise InvalidWorkflowError(
                "Limit",
                f"max is {max:,}; it must be at most {MOST_HOLDERS}, since all who hold a place share one record:"
                " split it by a key, with a part of it for each, or leave it out",
            )
        if on_limit not in _CHOICES:
            raise InvalidWorkflowError("Limit", f"on_limit is {on_limit!r}; it must be one of {', '.join(_CHOICES)}")
        if max_queued is not None and (type(max_queued) is not int or max_queued < 1):
            raise InvalidWorkflowError("Limit", f"max_queued is {max_queued!r}; it must be a whole number, at least 1")
        if on_limit != "queue" and (max_queued is not None or ttl is not None):
            raise InvalidWorkflowError("Limit", "max_queued and ttl belong to on_limit='queue'")
        self.max: Final = max
        self.key: Final[Callable[..., Any] | None] = key
        self.on_limit: Final = on_limit
        self.max_queued: Final = max_queued
        self.ttl: Final = None if ttl is None else seconds(ttl, what="ttl", minimum=0.001)

    def __repr__(self) -> str:
        return f"Limit({self.max}, on_limit={self.on_limit!r})"
