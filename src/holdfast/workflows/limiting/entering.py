"""Starting runs that need a place in lines: place and run in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.workflows.creating import Start, Started
    from holdfast.workflows.host import Host
    from holdfast.workflows.records import Standing


async def start_in_lines(host: Host, asked: Start, standings: tuple[Standing, ...]) -> Started:
    """Start a run that needs a place in lines."""
    raise NotImplementedError(host, asked, standings)
