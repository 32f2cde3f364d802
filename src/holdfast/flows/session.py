"""The state of a conversation: read as it is, changed by operations that are applied at the end.

A request does not write what it has read, changed and kept for a while. It notes *what to do*, and that is done to the
newest state when it ends well: so a message that is appended while a long answer runs does not make the answer fail,
and neither of two concurrent increments is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, final

from msgspec import Struct

from holdfast.codec import JsonValue

State: TypeAlias = dict[str, JsonValue]


class SetField(Struct, frozen=True):
    """The field becomes this value, whatever it was."""

    field: str
    value: Any


class IncrementField(Struct, frozen=True):
    """The field, a number or missing, becomes so much larger."""

    field: str
    by: int | float


class AppendToField(Struct, frozen=True):
    """The field, a list or missing, gets these items at its end."""

    field: str
    items: tuple[Any, ...]


class UpdateField(Struct, frozen=True):
    """The field becomes what a function makes of its newest value; None if it is missing."""

    field: str
    function: Callable[[Any], Any]


class DeleteField(Struct, frozen=True):
    """The field is gone."""

    field: str


Operation: TypeAlias = SetField | IncrementField | AppendToField | UpdateField | DeleteField


def apply(state: Mapping[str, JsonValue], operations: tuple[Operation, ...]) -> State:
    """Return a new state: the given one after all operations, in their order. The given one is left as it is.

    Raises:
        SessionStateError: An increment met something else than a number, an append something else than a list, or a
            function returned what is not JSON-shaped.
    """
    raise NotImplementedError


@final
class Session:
    """The state of a conversation as one request sees it: fields with JSON-shaped values.

        count = await request.session.get("count", 0)
        request.session.increment("count")
        request.session.append("messages", {"role": "user", "text": text})

    It is read from the store when it is first asked for, and never if it is not. Changes are staged: this request sees
    them at once, others when the action has ended well. They are then applied to the newest state, in one commit with
    the end of the request; if it fails, is cancelled or superseded, nothing of them is kept.

    Values that are read are copies: changing them changes nothing.

    Args:
        id: The id of the conversation; empty if the request belongs to none.
        load: Reads the newest state from the store.
    """

    __slots__ = ("_load", "_operations", "_state", "id")

    def __init__(self, id: str, load: Callable[[], Awaitable[Mapping[str, JsonValue]]]) -> None:  # noqa: A002 -- the word that users know
        self.id: Final = id
        self._load: Final = load
        self._operations: list[Operation] = []
        self._state: State | None = None

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was staged so far, in order; empty if nothing has to be written."""
        return tuple(self._operations)

    async def read(self) -> State:
        """Return the whole state, with what was staged."""
        raise NotImplementedError

    async def get(self, field: str, default: Any = None) -> Any:  # noqa: ANN401 -- JSON-shaped data
        """Return the value of a field, with what was staged; the default if there is none."""
        raise NotImplementedError

    def set(self, field: str, value: JsonValue) -> None:
        """Stage that the field becomes this value. Of two requests that set one field, the last to end wins."""
        raise NotImplementedError

    def increment(self, field: str, by: float = 1) -> None:
        """Stage that the field, a number or missing, becomes so much larger. Concurrent increments all count."""
        raise NotImplementedError

    def append(self, field: str, *items: JsonValue) -> None:
        """Stage that the field, a list or missing, gets these items at its end. Concurrent appends all land."""
        raise NotImplementedError

    def update(self, field: str, function: Callable[[Any], Any]) -> None:
        """Stage that the field becomes what a function makes of its value; it gets None if there is none.

        The function is called whenever the state is looked at, and once more for the newest state at the end: it must
        do nothing but return the new value.
        """
        raise NotImplementedError

    def delete(self, field: str) -> None:
        """Stage that the field is gone."""
        raise NotImplementedError
