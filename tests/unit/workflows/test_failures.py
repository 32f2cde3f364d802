"""Exceptions as data: they come back equal, from a closed list, and without their secrets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from standfast import errors
from standfast.codec import Codec
from standfast.errors import DeclarationError, LeaseLostError, StepFailedError, StepTimeoutError
from standfast.workflows.failures import Failure, KnownErrors, describe, is_trace, restore


class OddError(ValueError):
    """It wants other arguments than it keeps."""

    def __new__(cls, code: int, *, why: str) -> Self:
        """Refuse to be made without them."""
        return super().__new__(cls, code, why)

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code, self.why = code, why


class SlotsError(Exception):
    """It keeps its facts in slots."""

    __slots__ = ("code", "unused")

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


@dataclass(frozen=True)
class FrozenError(Exception):
    """It refuses every assignment."""

    code: int
    tags: list[str]


class MuteError(Exception):
    """Its message cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


class HandleError(Exception):
    """It holds something that cannot be stored, besides what can be."""

    def __init__(self, text: str) -> None:
        super().__init__(text, object())
        self.text, self.handle = text, object()

    def __str__(self) -> str:
        return self.text


class StrangerError(Exception):
    """Nobody has declared it."""


KNOWN = KnownErrors([OddError, SlotsError, FrozenError, MuteError, HandleError])
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=30) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner),
    max_leaves=6,
)
BUILT_IN = [
    ValueError,
    KeyError,
    OSError,
    StopIteration,
    ImportError,
    SyntaxError,
    UnicodeError,
    RuntimeError,
    NameError,
]


@st.composite
def anything_raised(draw: st.DrawFn) -> BaseException:
    """Draw an exception with any arguments, attributes, notes and causes."""
    text, number = draw(st.text(max_size=2_100)), draw(st.integers())
    made: BaseException = draw(
        st.sampled_from(BUILT_IN).flatmap(
            lambda kind: st.lists(plain, max_size=3).map(lambda args: attempt(kind, args))
        )
        | st.sampled_from([OddError(number, why=text), SlotsError(number), HandleError(text), StrangerError(text)])
        | st.sampled_from(
            [FrozenError(number, [text]), MuteError(text), KeyboardInterrupt(text), LeaseLostError("k", 5, text)]
        )
    )
    vars(made).update(
        draw(st.dictionaries(st.sampled_from(["code", "why", "reason", "__notes__", "x y"]), plain, max_size=3))
    )
    if draw(st.booleans()):
        BaseException.__setattr__(made, "__cause__", draw(anything_raised()))
    return made


def attempt(kind: type[Exception], args: list[Any]) -> Exception:
    """Make an exception of some arguments; of the plainest ones if its class does not take these."""
    try:
        return kind(*args)
    except TypeError:
        return kind("plain")


def raised(error: BaseException) -> Failure:
    """Raise it and describe it, as a step does."""
    try:
        raise error  # noqa: TRY301 -- it is to have a traceback
    except BaseException as caught:  # noqa: BLE001 -- whatever it is
        return describe(caught, KNOWN)


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception, without the note that says where it was raised."""
    notes = [note for note in getattr(error, "__notes__", ()) if not is_trace(note)]
    rest = {name: value for name, value in vars(error).items() if name != "__notes__"}
    return rest | ({"__notes__": notes} if notes else {})


def without_traces(failure: Failure) -> Failure:
    """Return a failure without what may differ."""
    return replace(failure, trace="", cause=failure.cause and without_traces(failure.cause))


# --- there and back -----------------------------------------------------------------------------------------------


@given(anything_raised())
def test_what_is_described_and_restored_is_described_the_same(error: BaseException) -> None:
    """Live goes through one round, replay of a failure that was raised again through two: both see the same."""
    failure = raised(error)
    again = describe(restore(failure, KNOWN), KNOWN)
    assert without_traces(again) == without_traces(failure)
    assert Codec(Failure).decode(Codec(Failure).encode(failure)) == failure


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no", 5, None, ["a"]),
        KeyError("key"),
        OddError(5, why="odd"),
        SlotsError(5),
        FrozenError(5, ["a"]),
        StepTimeoutError("charge", 1.5),
        LeaseLostError("k", 17, "h"),
        FileNotFoundError(2, "No such file", "a.txt"),
        ModuleNotFoundError("none", name="none", path="p"),
        StopIteration(7),
    ],
    ids=type,
)
def test_a_known_exception_comes_back_equal(error: Exception) -> None:
    """The same type, arguments, attributes and message, though no constructor was called."""
    restored = restore(raised(error), KNOWN)
    assert type(restored) is type(error)
    assert restored.args == error.args
    assert attributes_of(restored) == attributes_of(error)
    assert str(restored) == str(error)


def test_built_in_attributes_come_back() -> None:
    """Those that Python keeps outside of the arguments, too."""
    restored = restore(raised(FileNotFoundError(2, "No such file", "a.txt")), KNOWN)
    assert isinstance(restored, FileNotFoundError)
    assert (restored.errno, restored.strerror, restored.filename) == (2, "No such file", "a.txt")


def test_the_cause_comes_back_to_a_depth() -> None:
    """Three causes are kept; a chain that bites its tail ends."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    texts: list[str] = []
    error: BaseException | None = restore(raised(first), KNOWN)
    while error is not None:
        texts.append(error.args[0])
        error = error.__cause__
    assert texts == ["first", "second", "first", "second"]


def test_an_argument_that_cannot_be_stored_leaves_the_type_and_the_message() -> None:
    """``except HandleError`` still works, and what can be kept of it is."""
    restored = restore(raised(HandleError("jammed")), KNOWN)
    assert isinstance(restored, HandleError)
    assert restored.args == ("jammed",)
    assert attributes_of(restored) == {"text": "jammed"}


# --- what is told in words ----------------------------------------------------------------------------------------


def test_an_undeclared_exception_is_told_in_words() -> None:
    """Its name, message and the place where it was raised are kept."""
    error = restore(raised(StrangerError("odd")), KNOWN)
    assert type(error) is StepFailedError
    assert error.error_type == f"{__name__}.StrangerError"
    assert error.message == "odd"
    assert error.trace.endswith("in raised")
    assert "workflows/test_failures.py:" in error.trace


def test_declaring_an_exception_later_does_not_change_what_was_recorded() -> None:
    """Replay raises what the live run raised, also after the list has grown."""
    failure = raised(StrangerError("odd"))
    assert type(restore(failure, KnownErrors([StrangerError]))) is StepFailedError


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), asyncio.CancelledError(), UnicodeDecodeError("a", b"x", 0, 1, "b")]
)
def test_what_cannot_be_restored_as_it_was_is_told_in_words(error: BaseException) -> None:
    """Nothing comes back that is less than it says."""
    restored = restore(raised(error), KNOWN)
    assert type(restored) is StepFailedError
    assert restored.error_type.endswith(type(error).__name__)
    assert restored.message == str(error)


def test_a_group_tells_what_is_in_it() -> None:
    """The messages of the inner exceptions are in its own, as many as are useful."""
    group = ExceptionGroup("many", [ValueError("one"), ExceptionGroup("few", [KeyError("two")]), *[OSError()] * 10])
    error = restore(raised(group), KNOWN)
    assert type(error) is StepFailedError
    assert "ValueError: one; ExceptionGroup: few (1 sub-exception): KeyError: 'two'; OSError: ;" in error.message
    assert error.message.endswith("; and 2 more")


@pytest.mark.parametrize(
    "failure",
    [
        Failure("os.system", "", args=Raw(b'["true"]')),
        Failure("builtins.ValueError", "x", args=Raw(b"{")),
        Failure("builtins.ValueError", "x", args=Raw(b'"text"')),
        Failure("builtins.ValueError", "x", args=Raw(b"[]"), state=Raw(b"[1]")),
        Failure("builtins.SystemExit", "x", args=Raw(b"[1]")),
        Failure("builtins.ExceptionGroup", "x", args=Raw(b'["g",[]]')),
        Failure("standfast.errors.StepFailedError", "x", args=Raw(b'["x"]')),
    ],
    ids=lambda each: each.type,
)
def test_damaged_or_foreign_data_is_told_in_words(failure: Failure) -> None:
    """Stored data chooses from the list, or is shown; it is never an error to read it."""
    assert type(restore(failure, KNOWN)) is StepFailedError


NOTHING_IMPORTED = """
import sys
from standfast.workflows.failures import Failure, KnownErrors, Raw, restore
restore(Failure("xmlrpc.client.Fault", "x", args=Raw(b"[1]")), KnownErrors())
assert "xmlrpc.client" not in sys.modules
"""


def test_reading_imports_nothing() -> None:
    """A name in stored data is looked up in the list only."""
    subprocess.run([sys.executable, "-c", NOTHING_IMPORTED], check=True)


@pytest.mark.parametrize("wrong", [KeyboardInterrupt, ExceptionGroup, ValueError("x"), "ValueError", object])
def test_only_exception_classes_can_be_declared(wrong: Any) -> None:
    """The list is checked when it is made."""
    with pytest.raises(DeclarationError, match="only subclasses of Exception"):
        KnownErrors([wrong])


def test_two_declared_exceptions_need_two_names() -> None:
    """Else a name in the history would not say which."""
    twins = [type("TwinError", (Exception,), {}) for _ in range(2)]
    with pytest.raises(DeclarationError, match="same full name"):
        KnownErrors(twins)


def test_every_public_error_is_known() -> None:
    """What Standfast raises in a step comes back as it is."""
    assert [name for name in errors.__all__ if getattr(errors, name) not in KNOWN] == ["StepFailedError"]


# --- secrets and sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("cannot reach postgresql://app:hunter2@db/prod"),
        KeyError({"url": ["redis://:hunter2@h"]}),
        OddError(1, why="password=hunter2"),
        StrangerError("token: hunter2"),
        ExceptionGroup("g", [ValueError("password=hunter2")]),
    ],
    ids=type,
)
def test_secrets_are_masked_before_they_are_stored(error: Exception) -> None:
    """In message, arguments, attributes and causes."""
    outer = RuntimeError("outer")
    outer.__cause__ = error
    for each in (error, outer):
        each.add_note("password=hunter2")
        assert b"hunter2" not in Codec(Failure).encode(raised(each))


def test_a_failure_is_of_bounded_size() -> None:
    """However much an exception carries, its record stays small."""
    error: Exception = ValueError("x" * 10**6)
    for _ in range(10):
        outer = RuntimeError(["\x00" * 10**4] * 100)
        vars(outer).update({f"x{n}": "\x00" * 1_000 for n in range(100)})
        outer.__cause__, error = error, outer
    assert len(Codec(Failure).encode(raised(error))) < 120_000
