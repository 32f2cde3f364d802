"""Starting runs within a transaction of the user's, over a connection that blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.blocking.run import Run
from holdfast.errors import UnsuitableConnectionError
from holdfast.stores.guests import guest_of
from holdfast.stores.joining import converse_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.blocking.engine_link import EngineLink
    from holdfast.stores.joining import Talk
    from holdfast.workflows.declaring.definition import Workflow
    from holdfast.workflows.engine import Engine as AsyncEngine
    from holdfast.workflows.starting.creating import Started

R = TypeVar("R")


def start_within(
    link: EngineLink,
    connection: object,
    workflow: Workflow[..., R],
    prepare: Callable[[AsyncEngine], Coroutine[Any, Any, Talk[Started]]],
) -> Run[R]:
    """Start a run in the transaction of a connection: prepared on Holdfast's own thread, and asked for in this one."""
    guest = guest_of(connection)
    if not guest.blocks:
        raise UnsuitableConnectionError(guest.kind, "it is for code with an event loop; use holdfast.Engine with it")
    started = converse_blocking(guest, link.call(prepare))
    return Run(link, started.run_id, workflow, is_new=started.is_new)
