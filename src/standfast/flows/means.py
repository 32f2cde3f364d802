"""The seam between a request and whoever runs it: what a request can do is done by these means.

A dispatcher has them for requests that it runs, :class:`~standfast.flows.calling.Calls`, and a test for those that it
rehearses, :class:`~standfast.testing.flows.rehearsal.Rehearsal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from standfast.flows.arrival import Address
    from standfast.flows.session import Session
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.handle import Run


class Means(Protocol):
    """What a dispatcher does for a request that it runs."""

    @property
    def stopping(self) -> str:
        """Why the request was asked to stop; empty if it was not."""
        ...

    @property
    def session(self) -> Session:
        """The state of its conversation."""
        ...

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell those who follow the request."""
        ...

    def signed(self, address: Address) -> Address:
        """Return a key as it is sent to other processes."""
        ...

    async def start(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str | None,  # noqa: A002 -- the word that users know
    ) -> Run[Any]:
        """Start a workflow, under an id that follows from the request's if none is given."""
        ...

    async def run_once(
        self, key: str, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a function, or return what was recorded of its result."""
        ...
