"""The state of a conversation: read as it is, changed by operations that are applied at the end.

A request does not write what it has read, changed and kept for a while. It notes *what to do*, and that is done to the
newest state when it ends well: so a message that is appended while a long answer runs does not make the answer fail,
and neither of two concurrent increments is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from math import inf, isfinite
from typing import Any, Final, TypeAlias, cast, final

from msgspec import Struct

from standfast.codec import JsonValue
from standfast.errors import EncodeError, SessionMissingError, SessionStateError
from standfast.exits import EXITS, failure_of
from standfast.workflows.values import PLAIN

State: TypeAlias = dict[str, JsonValue]

LONGEST_FIELD: Final = 200


class SetField(Struct, frozen=True):
    """The field becomes this value, whatever it was."""

    field: str
    value: Any


class IncrementField(Struct, frozen=True):
    """A number is added to the field, which is a number or missing."""

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
    changed = dict(state)
    for operation in operations:
        if isinstance(operation, DeleteField):
            changed.pop(operation.field, None)
        else:
            changed[operation.field] = _value_after(operation, changed.get(operation.field))
    return changed


def _value_after(operation: SetField | IncrementField | AppendToField | UpdateField, value: JsonValue) -> JsonValue:
    match operation:
        case SetField():
            return cast("JsonValue", operation.value)
        case IncrementField():
            return _sum(operation, value)
        case AppendToField():
            if value is not None and not isinstance(value, list):
                problem = f"is a {_word(value)} and cannot be appended to; it must be a list"
                raise SessionStateError(operation.field, problem)
            return [*(value or ()), *operation.items]
        case UpdateField():
            try:
                made = operation.function(deepcopy(value))
            except EXITS as raised:
                raise failure_of(raised) from raised
            return checked_value(operation.field, made)


def _sum(operation: IncrementField, value: JsonValue) -> int | float:
    if value is None:
        return operation.by
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SessionStateError(operation.field, f"is a {_word(value)} and cannot be incremented; it must be a number")
    try:
        total = value + operation.by
    except OverflowError:  # an integer that is too large for a float
        total = inf
    if isinstance(total, float) and not isfinite(total):
        raise SessionStateError(operation.field, "would get too large to be a number")
    return total


def _word(value: JsonValue) -> str:
    return {"str": "text", "dict": "object", "float": "number", "int": "number"}.get(name := type(value).__name__, name)


def checked_value(field: str, value: object) -> JsonValue:
    """Return a copy of a value of a field, as it will be read from the store.

    Raises:
        SessionStateError: It is not JSON-shaped, or too large. The error names the place in it, never the value.
    """
    try:
        return cast("JsonValue", PLAIN.pack_and_restore(value)[1])
    except EncodeError as error:
        problem = str(error).removeprefix("the value ")
        raise SessionStateError(field, problem) from None


def checked_field(field: str) -> str:
    """Return the name of a field; refuse what cannot be one."""
    if not isinstance(field, str) or not field or not field.isprintable() or len(field.encode()) > LONGEST_FIELD:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise SessionStateError(ascii(field)[:60], f"has a name that is not 1 to {LONGEST_FIELD} printable bytes")
    return field


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
        return deepcopy(await self._seen())

    async def get(self, field: str, default: Any = None) -> Any:  # noqa: ANN401 -- JSON-shaped data
        """Return the value of a field, with what was staged; the default if there is none."""
        state = await self._seen()
        return deepcopy(state[field]) if field in state else default

    def set(self, field: str, value: JsonValue) -> None:
        """Stage that the field becomes this value. Of two requests that set one field, the last to end wins."""
        self._stage(SetField(checked_field(field), checked_value(field, value)))

    def increment(self, field: str, by: float = 1) -> None:
        """Stage that a number is added to the field, which is a number or missing. Concurrent increments all count."""
        if type(by) not in (int, float) or not isfinite(by):
            raise SessionStateError(field, f"cannot be incremented by {by!r:.60}; it must be a number")
        self._stage(IncrementField(checked_field(field), by))

    def append(self, field: str, *items: JsonValue) -> None:
        """Stage that the field, a list or missing, gets these items at its end. Concurrent appends all land."""
        copies = cast("list[JsonValue]", checked_value(field, [*items]))
        self._stage(AppendToField(checked_field(field), tuple(copies)))

    def update(self, field: str, function: Callable[[Any], Any]) -> None:
        """Stage that the field becomes what a function makes of its value; it gets None if there is none.

        The function is called whenever the state is looked at, and once more for the newest state at the end: it must
        do nothing but return the new value. What it raises is raised there.
        """
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise SessionStateError(checked_field(field), "is updated by a plain function of its value")
        self._stage(UpdateField(checked_field(field), function))

    def delete(self, field: str) -> None:
        """Stage that the field is gone."""
        self._stage(DeleteField(checked_field(field)))

    def _stage(self, operation: Operation) -> None:
        if not self.id:
            raise SessionMissingError(operation.field, "the request belongs to no session; send Standfast-Session")
        self._operations.append(operation)

    async def _seen(self) -> State:
        """Return the state as this request sees it. It is read from the store once."""
        if self._state is None:
            loaded: State = dict(await self._load()) if self.id else {}
            if self._state is None:  # no other task was faster while this one waited
                self._state = loaded
        return apply(self._state, self.operations)

    def __repr__(self) -> str:
        return f"<session {self.id!r}, {len(self._operations)} operations staged>"
