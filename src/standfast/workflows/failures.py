"""Exceptions as data, and back.

What a step raises is stored by the name of its type, its arguments and its attributes. Reading makes only types of
an allow-list, found by name in it: nothing is imported, and no constructor is called. Workflow code always sees the
restored exception, live as in replay, so the two cannot differ.
"""

from __future__ import annotations

import builtins
import functools
import logging
import os
import re
import sysconfig
import traceback
from contextlib import suppress
from itertools import dropwhile
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from standfast import errors
from standfast.errors import DeclarationError, DecodeError, EncodeError, StepFailedError
from standfast.errors.retired import RETIRED
from standfast.locks.inspect import one_line
from standfast.redaction import mask_message
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType

    Place: TypeAlias = tuple[FrameType, int]


# --- where an exception was raised, as the frames of the user's own code: the last one is the line that raised -----
#
# Frames of Standfast are left out. Frames of libraries below the last line of the user are folded into it, so that a
# deep library does not push the user's line out. A trace names files, lines and functions, and never a value.

MOST_FRAMES: Final = 10
_MAX_LINE: Final = 190  # so that as many lines fit into a message
_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 -- compared with the text of code objects
_TESTING: Final = f"{_HERE}testing{os.sep}"
_STANDARD: Final = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")


@final
class TraceNote(str):
    """A note on a restored exception that says where it was raised; a traceback shows it below the message."""

    __slots__ = ()

    @classmethod
    def of(cls, trace: str) -> TraceNote:
        """Return the note for a trace."""
        return cls("raised at\n" + "\n".join(f"  {line}" for line in trace.splitlines()))

    @property
    def trace(self) -> str:
        """The trace that it was made of."""
        return "\n".join(line.strip() for line in self.splitlines()[1:])


def add_trace(error: BaseException, trace: str) -> None:
    """Let an exception show where it was raised, in another process or at another time."""
    notes: object = error.__dict__.setdefault("__notes__", []) if trace else None  # a frozen class refuses add_note
    if isinstance(notes, list):
        cast("list[str]", notes).append(TraceNote.of(trace))


def is_trace(note: object) -> bool:
    """Return True if a note of an exception was added by :func:`add_trace`."""
    return isinstance(note, TraceNote)


def trace_of(error: BaseException, carried: str = "") -> str:
    """Return where an exception was raised, the innermost last: its own frames, then those that it brings along.

    Args:
        error: What was raised.
        carried: The trace that it brings along, if it has no note that says so.
    """
    if not carried:
        notes: object = getattr(error, "__notes__", ())
        listed = cast("list[object]", notes) if isinstance(notes, list) else []
        carried = next((note.trace for note in listed if isinstance(note, TraceNote)), "")
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [*_own_lines(frames), *carried.splitlines()][-MOST_FRAMES:]
    cause = error.__cause__
    is_told = cause is not None and _own(list(traceback.walk_tb(cause.__traceback__)))  # by the trace of the cause
    is_ours = not is_told and not type(error).__module__.startswith("standfast.")
    if not lines and is_ours:  # it comes from Standfast, and should not
        lines = [_line(place) for place in frames[-MOST_FRAMES:]]
    return mask_message("\n".join(line[-_MAX_LINE:] for line in lines))


def _own_lines(frames: list[Place]) -> list[str]:
    """Return the lines of the user's own frames, with what is below the last of them folded into it."""
    own = _own(frames)
    if not own:
        return []
    lines = [_line(place) for place in own]
    below = [
        place for place in dropwhile(lambda place: place is not own[-1], frames) if not _is_standfast(_file(place))
    ]
    if len(below) > 1:
        lines[-1] = f"{_line(below[0])} (raised in {_line(below[-1])})"
    return lines


def _own(frames: list[Place]) -> list[Place]:
    """Return the frames of the user's code.

    That is what is neither installed, nor of Python, nor of Standfast. An application that is itself installed is known
    by its outermost frame.
    """
    foreign = [place for place in frames if not _is_standfast(_file(place)) and not _is_python(_file(place))]
    if here := [place for place in foreign if not _INSTALLED.search(_file(place))]:
        return here
    package = _package(foreign[0]) if foreign else ""
    return [place for place in foreign if _package(place) == package]


def _package(place: Place) -> str:
    found = _INSTALLED.search(_file(place))
    return found[1] if found else ""


def _file(place: Place) -> str:
    return place[0].f_code.co_filename


def _is_standfast(file: str) -> bool:
    return file.startswith(_HERE) and not file.startswith(_TESTING)


def _is_python(file: str) -> bool:
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and not _INSTALLED.search(file))


def _line(place: Place) -> str:
    frame, line = place
    path = _file(place).replace("\\", "/").split("/")[-2:]  # without what is particular to one machine
    return f"{'/'.join(path)}:{line} in {frame.f_code.co_qualname}"


# --- exceptions as data, and back ----------------------------------------------------------------------------------

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
        DeclarationError: One of them is not an exception class, or two have the same full name.
    """

    __slots__ = ("_types",)

    def __init__(self, extra: Iterable[type[Exception]] = ()) -> None:
        self._types = dict(_OURS)
        for each in extra:
            if not _is_restorable(each):
                raise DeclarationError(f"raises={each!r}", "only subclasses of Exception can be declared, no groups")
            if self._types.setdefault(name_of(each), each) is not each:
                raise DeclarationError(f"raises={each!r}", "another exception with the same full name is declared")

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


_OURS: Final[Mapping[str, type[Exception]]] = {f"standfast.errors.{name}": kind for name, kind in RETIRED.items()} | {
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
    told = Failure(name_of(type(error)), _message(error))
    if type(error) in known:
        kind = cast("type[Exception]", type(error))
        told = next((each for each in _candidates(error, told) if _comes_back(each, kind)), told)
    return msgspec.structs.replace(told, trace=trace_of(error), cause=cause)


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


@functools.lru_cache(maxsize=256)
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
    error: Exception | None = None
    kind = known.find(failure.type)
    if kind is not None and failure.args is not UNSET:
        with suppress(Exception):  # the class has changed since: its failure is told in words
            error = _make(failure, kind)
    if error is None:
        error = StepFailedError(failure.type, failure.message, failure.trace)
    add_trace(error, failure.trace)
    if failure.cause is not None:
        _set(error, "__cause__", restore(failure.cause, known))
    return error


def _make(failure: Failure, kind: type[Exception]) -> Exception:
    """Make an exception without calling its constructor, which may want or do anything."""
    native = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    error: Exception = cast("Any", native).__new__(kind)
    args: object = PLAIN.unpack(b"" if failure.args is UNSET else failure.args)
    if not isinstance(args, list):
        raise DecodeError("the arguments of an exception are not a list")
    _set(error, "args", tuple(cast("list[object]", args)))
    if failure.type != name_of(kind):  # its class is gone, and this one took its place
        error.__dict__["_said"] = failure.message
    state: dict[str, object] = {} if failure.state is UNSET else PLAIN.unpack(failure.state)
    slots = frozenset(_slots(cast("Any", kind)))
    for name, value in state.items():
        if name in slots:
            _set(error, name, value)
        elif _NAME.fullmatch(name):
            error.__dict__[name] = value
    return error


# --- failures in the log: one ERROR entry for each run or request that failed, with the lines of the user's own
# code ---
#
# They are written through the standard ``logging``, to loggers below ``standfast``, whether or not there are hooks. If
# nothing is configured, Python prints them to stderr. An entry has the message of the exception with secrets masked,
# and no value besides.

_LOGGED: Final = "__standfast_logged__"
_PLAIN: Final = KnownErrors()


def log_failure(logger: logging.Logger, what: str, failure: Failure | BaseException, **facts: str) -> None:
    """Write that something failed, as one entry.

    Args:
        logger: Where to.
        what: What failed, as the subject of a sentence.
        failure: What was raised.
        facts: More for handlers that take structure: they find it in ``record.standfast``.
    """
    if not logger.isEnabledFor(logging.ERROR):
        return
    told = describe(failure, _PLAIN) if isinstance(failure, BaseException) else failure
    first, *rest = failure_lines(told)
    message = "\n".join([f"{what} failed: {first}", *(f"  {line}" for line in rest)])
    structured = {"event": "failure", **facts, "error": told.type, "message": told.message, "trace": told.trace}
    logger.error("%s", message, extra={"standfast": structured})


def failure_lines(failure: Failure) -> Iterator[str]:
    """Yield what was raised, from where, and what caused it, unless that ends in the same lines."""
    name = one_line(failure.type.removeprefix("builtins."))
    yield f"{name}: {one_line(failure.message)}" if failure.message else name
    yield from map(one_line, failure.trace.splitlines())
    if failure.cause is not None and not (failure.cause.trace and failure.trace.endswith(failure.cause.trace)):
        first, *rest = failure_lines(failure.cause)
        yield f"caused by {first}"
        yield from rest


def set_logged(error: BaseException) -> None:
    """Note that what an exception tells of is in the log already, so that code that passes it on does not repeat it."""
    error.__dict__[_LOGGED] = True


def is_logged(error: BaseException | None) -> bool:
    """Return True if what an exception tells of is in the log already."""
    return error is not None and _LOGGED in error.__dict__
