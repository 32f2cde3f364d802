"""A run outside of its store: its header, its state and its history as JSON.

The test kit writes it to files and replays it; the dashboard hands it out as a test to paste.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, structs

from standfast.workflows.records import Header, HistoryEvent, RunKeys, RunState, events_of, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.scope import Scope

FORMAT: Final = 1


class SavedHistory(Struct, frozen=True, rename={"state": "life", "events": "marks"}):
    """A run as it lies in a file.

    Attributes:
        format: The version of this layout.
        run: Its id.
        header: What it was started with.
        state: How it was when it was saved.
        events: Its history.
    """

    format: int
    run: str
    header: Header
    state: RunState
    events: tuple[HistoryEvent, ...]

    def as_json(self) -> bytes:
        """Return it as it lies in a file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def masked(self, mask: Callable[[object], object]) -> SavedHistory:
        """Return it with all values as a function returns them.

        If that changes any, what says which arguments steps had is left out: they would be others in a replay.
        """

        def raw(packed: msgspec.Raw) -> msgspec.Raw:
            return msgspec.Raw(msgspec.json.encode(mask(msgspec.json.decode(packed))))

        events = [
            event if isinstance(event.value, msgspec.UnsetType) else structs.replace(event, value=raw(event.value))
            for event in self.events
        ]
        header = structs.replace(self.header, input=raw(self.header.input))
        state = self.state if not self.state.result else structs.replace(self.state, result=raw(self.state.result))
        changed = structs.replace(self, header=header, state=state, events=tuple(events))
        if msgspec.json.decode(changed.as_json()) == msgspec.json.decode(self.as_json()):
            return self
        return structs.replace(changed, events=tuple(structs.replace(event, digest="") for event in events))


async def read_saved(scope: Scope, run_id: str) -> SavedHistory:
    """Read a run with all that it has recorded."""
    run = await find(scope, run_id)
    return SavedHistory(FORMAT, run_id, run.header, run.state, tuple(await events_of(scope, RunKeys(scope, run_id))))
