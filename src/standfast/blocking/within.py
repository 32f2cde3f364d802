"""Starting runs within a transaction of the user's, over a connection that blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from standfast.blocking.run import Run
from standfast.errors import UnsuitableConnectionError
from standfast.stores.user_transactions import converse_blocking, user_connection_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.blocking.engine_link import EngineLink
    from standfast.stores.user_transactions import Talk
    from standfast.workflows.definition import Workflow
    from standfast.workflows.engine import Engine as AsyncEngine
    from standfast.workflows.records import Started


def start_within(
    link: EngineLink,
    connection: object,
    prepare: Callable[[AsyncEngine], Coroutine[Any, Any, tuple[Talk[Started], Workflow[..., Any] | None]]],
) -> Run[Any]:
    """Start a run in the transaction of a connection: prepared on Standfast's own thread, and asked for in this one."""
    guest = user_connection_of(connection)
    if not guest.blocks:
        raise UnsuitableConnectionError(guest.kind, "it is for code with an event loop; use standfast.Engine with it")
    talk, workflow = link.call(prepare)
    started = converse_blocking(guest, talk)
    return Run(link, started.run_id, workflow, is_new=started.is_new)
