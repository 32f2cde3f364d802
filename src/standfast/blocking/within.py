"""Starting runs within a transaction of the user's, over a connection that blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from standfast.blocking.run import Run
from standfast.errors import UnsuitableConnectionError
from standfast.stores.guests import guest_of
from standfast.stores.joining import converse_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.blocking.engine_link import EngineLink
    from standfast.stores.joining import Talk
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.engine import Engine as AsyncEngine
    from standfast.workflows.starting.creating import Started

R = TypeVar("R")


def start_within(
    link: EngineLink,
    connection: object,
    workflow: Workflow[..., R],
    prepare: Callable[[AsyncEngine], Coroutine[Any, Any, Talk[Started]]],
) -> Run[R]:
    """Start a run in the transaction of a connection: prepared on Standfast's own thread, and asked for in this one."""
    guest = guest_of(connection)
    if not guest.blocks:
        raise UnsuitableConnectionError(guest.kind, "it is for code with an event loop; use standfast.Engine with it")
    started = converse_blocking(guest, link.call(prepare))
    return Run(link, started.run_id, workflow, is_new=started.is_new)
