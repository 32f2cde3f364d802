"""Exceptions as data, and back.

What a step raises is stored by the name of its type, its arguments and its attributes. Reading makes only types of
an allow-list, found by name in it: nothing is imported, and no constructor is called. Workflow code always sees the
restored exception, live as in replay, so the two cannot differ.
"""

from __future__ import annotations

import builtins
import re
from contextlib import suppress
from functools import lru_cache
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, cast, final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from standfast import errors
from standfast.errors import DecodeError, EncodeError, InvalidWorkflowError, StepFailedError
from standfast.masking import mask_message
from standfast.workflows.storing.trace import add_trace, is_trace, trace_of
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_CAUSES: Final = 3
_MAX_PART: Final = 8_000  # bytes of arguments, and of attributes
_MAX_INNER: Final = 10  # exceptions of a group that are told
_set: Final = BaseException.__setattr__  # a frozen class has another one, which refuses
_NAME: Final = re.compile(r"(?!__)[^\W\d]\w{0,100}|__notes__", re.ASCII)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as data.

    Attributes:
        type: The full name of its class: ``builtins.ValueError``.
        message: Its text, with secrets masked.
        args: Its arguments, if it can be restored as its own type.
        state: Those of its attributes that are JSON-shaped.
        trace: Where it was raised: the lines of the user's own code, as ``file:line in function``, the innermost last.
            Empty in what older versions have stored, and where none of the user's code is involved.
        cause: What it was raised from.
    """

    type: str
    message: str
    args: Raw | UnsetType = UNSET  # not None: msgspec reads no union of raw data and null
    state: Raw | UnsetType = UNSET
    trace: str = ""
    cause: Failure | None = None


@final
class KnownErrors:
    """The exceptions that may be made from stored data: those of Python, of Standfast, and the declared ones.

    Args:
        extra: Exception classes of the user, groups of exceptions excepted.

    Raises:
        InvalidWorkflowError: One of them is not an exception class, or two have the same full name.
    """

    __slots__ = ("_types",)

    def __init__(self, extra: Iterable[type[Exception]] = ()) -> None:
        self._types = dict(_OURS)
        for each in extra:
            if not _is_restorable(each):
                raise InvalidWorkflowError(
                    f"raises={each!r}", "only subclasses of Exception can be declared, no groups"
                )
            if self._types.setdefault(name_of(each), each) is not each:
                raise InvalidWorkflowError(f"raises={each!r}", "another exception with the same full name is declared")

    def find(self, name: str) -> type[Exception] | None:
        """Return the class with that full name, if it is known."""
        return self._types.get(name)

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, type) and self._types.get(name_of(kind)) is kind


def name_of(kind: type) -> str:
    """Return the full name of a class, as it is stored."""
    return f"{kind.__module__}.{kind.__qualname__}".encode(errors="replace").decode()


def _is_restorable(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, BaseExceptionGroup)


_OURS: Final[dict[str, type[Exception]]] = {
    name_of(kind): kind
    for kind in [*vars(builtins).values(), *(getattr(errors, name) for name in errors.__all__)]
    if _is_restorable(kind) and kind is not StepFailedError
}


# --- to data ------------------------------------------------------------------------------------------------------


def describe(error: BaseException, known: KnownErrors) -> Failure:
    """Return an exception as data that :func:`restore` makes an equal one from, as far as that is possible.

    What is described, restored and described again is the same, but for its trace.
    """
    return _describe(error, known, _MAX_CAUSES)


def _describe(error: BaseException, known: KnownErrors, depth: int) -> Failure:
    cause = _describe(error.__cause__, known, depth - 1) if depth and error.__cause__ else None
    if isinstance(error, StepFailedError):
        return Failure(error.error_type, error.message, trace=trace_of(error, error.trace), cause=cause)
    return msgspec.structs.replace(_alone(error, known), trace=trace_of(error), cause=cause)


def _alone(error: BaseException, known: KnownErrors) -> Failure:
    """Describe an exception without trace and cause: as well as it can be restored."""
    told = Failure(name_of(type(error)), _message(error))
    if type(error) not in known:
        return told
    kind = cast("type[Exception]", type(error))
    return next((each for each in _candidates(error, told) if _comes_back(each, kind)), told)


def _candidates(error: BaseException, told: Failure) -> Iterator[Failure]:
    """Yield descriptions of an exception, from the one that keeps most."""
    state, words = _state(error), _packed([told.message]) or UNSET
    with suppress(Exception):  # args can be anything, also a property that raises
        if (args := _packed(list(error.args))) is not None:
            yield msgspec.structs.replace(told, args=args, state=state)
    yield msgspec.structs.replace(told, args=words, state=state)
    yield msgspec.structs.replace(told, args=words)


def _comes_back(told: Failure, kind: type[Exception]) -> bool:
    try:
        made = _make(told, kind)
    except Exception:  # noqa: BLE001 -- a class may refuse anything, and is then told in words
        return False
    return _message(made) == told.message and next(_candidates(made, told)) == told


def _message(error: BaseException) -> str:
    try:
        text = str(error) + _inner_messages(error)
    except Exception:  # noqa: BLE001 -- a message of the user's making may raise anything
        text = "its message cannot be shown"
    return mask_message(text)


def _inner_messages(error: BaseException) -> str:
    """Return what the exceptions of a group say, and nothing for any other exception."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
    told = [f"{type(each).__name__}: {_message(each)}" for each in inner[:_MAX_INNER]]
    more = [f"and {len(inner) - _MAX_INNER} more"] if len(inner) > _MAX_INNER else []
    return f": {'; '.join(told + more)}"


def _state(error: BaseException) -> Raw | UnsetType:
    """Return the attributes that can be stored, those in slots and those of built-in classes too."""
    kept: dict[str, Any] = {}
    room = _MAX_PART
    for name, value in _attributes(error):
        if _NAME.fullmatch(name) and (packed := _packed(value)) is not None:
            room -= len(bytes(packed)) + len(name) + 4
            if room > 0:
                kept[name] = _masked(value)
    return _packed(kept) or UNSET if kept else UNSET


def _attributes(error: BaseException) -> Iterator[tuple[str, object]]:
    for name in _slots(cast("Any", type(error))):
        value = getattr(error, name, None)
        if value is not None:  # slots of built-in classes are None when unused
            yield name, value
    for name, value in vars(error).items():
        if name == "__notes__" and isinstance(value, list):  # where it was raised is kept apart from its notes
            notes = [note for note in cast("list[object]", value) if not is_trace(note)]
            yield from ((name, notes),) if notes else ()
        else:
            yield name, value


@lru_cache(maxsize=256)
def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that a class does not keep in ``__dict__``."""
    return tuple(
        name
        for each in reversed(kind.__mro__)
        for name, what in vars(each).items()
        if isinstance(what, MemberDescriptorType) and not name.startswith("__")
    )


def _masked(value: object) -> object:
    """Mask every text in JSON-shaped data."""
    match value:
        case str():
            return mask_message(value)
        case list() | tuple():
            return [_masked(item) for item in cast("list[object]", value)]
        case dict():
            return {key: _masked(item) for key, item in cast("dict[object, object]", value).items()}
        case _:
            return value


def _packed(value: object) -> Raw | None:
    """Return plain data as JSON, masked; None if it cannot be stored or is too large."""
    try:
        body = PLAIN.pack(_masked(value))
    except (EncodeError, RecursionError):
        return None
    return Raw(body) if len(body) <= _MAX_PART else None


# --- and back -----------------------------------------------------------------------------------------------------


def restore(failure: Failure, known: KnownErrors) -> Exception:
    """Return the exception that a failure tells of: of its own type if that is known, else a ``StepFailedError``.

    Where it was raised is a note on it, so that a traceback of it shows the line.
    """
    error = _restore_alone(failure, known)
    add_trace(error, failure.trace)
    if failure.cause is not None:
        _set(error, "__cause__", restore(failure.cause, known))
    return error


def _restore_alone(failure: Failure, known: KnownErrors) -> Exception:
    kind = known.find(failure.type)
    if kind is not None and failure.args is not UNSET:
        with suppress(Exception):  # the class has changed since: its failure is told in words
            return _make(failure, kind)
    return StepFailedError(failure.type, failure.message, failure.trace)


def _make(failure: Failure, kind: type[Exception]) -> Exception:
    """Make an exception without calling its constructor, which may want or do anything."""
    native = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    error: Exception = cast("Any", native).__new__(kind)
    args: object = PLAIN.unpack(b"" if failure.args is UNSET else failure.args)
    if not isinstance(args, list):
        raise DecodeError("the arguments of an exception are not a list")
    _set(error, "args", tuple(cast("list[object]", args)))
    state: dict[str, object] = {} if failure.state is UNSET else PLAIN.unpack(failure.state)
    slots = frozenset(_slots(cast("Any", kind)))
    for name, value in state.items():
        if name in slots:
            _set(error, name, value)
        elif _NAME.fullmatch(name):
            error.__dict__[name] = value
    return error
