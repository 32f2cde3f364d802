"""Functions and their arguments: stored by name, read back by the types that are declared, and told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Coroutine  # noqa: TC003 -- the annotations of functions under test are read
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pydantic import BaseModel

from standfast.errors import DeclarationError, DecodeError, EncodeError, WrongArgumentsError
from standfast.workflows.values import digest, signature_of

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found] # it is only there for type checkers


@dataclass
class Line:
    """A dataclass that holds its like."""

    sku: str
    price: Decimal
    inner: list[Line] = field(default_factory=list)


class Item(BaseModel):
    """A model with a set in it."""

    sku: str
    marks: set[str]


class Basket(BaseModel):
    """A model that holds models."""

    items: list[Item]


class Opaque:
    """A class that nothing reads."""


ONE = Line("a", Decimal(1))
APPLE = Item(sku="apple", marks={"a", "b", "c", "d"})
moments = st.datetimes(timezones=st.just(UTC))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


async def order(
    ctx: Missing, number: int, /, line: Line, *, at: datetime | None = None, tags: tuple[str, ...] = ()
) -> Item:
    """A workflow as users write it: the type of its context need not be there at run time."""
    raise NotImplementedError


ORDER = signature_of(order, skip_first=True)


def test_arguments_are_stored_by_name_without_defaults() -> None:
    """The function fills in its defaults itself, so that changing them changes old runs as it would any call."""
    data = ORDER.pack((1, ONE), {})
    assert data == b'{"number":1,"line":{"sku":"a","price":"1","inner":[]}}'
    assert ORDER.unpack(data) == ((1,), {"line": ONE})


@given(st.integers(), st.booleans(), st.none() | moments, st.lists(st.text()).map(tuple))
def test_arguments_come_back_as_they_were_given(number: int, by_name: bool, at: object, tags: object) -> None:  # noqa: FBT001 -- drawn by hypothesis, never written by hand
    """However a call is written, the function is called with equal arguments."""
    args, kwargs = ((number,), {"line": ONE}) if by_name else ((number, ONE), {})
    found = ORDER.unpack(Raw(ORDER.pack(args, {**kwargs, "at": at, "tags": tags})))
    assert found == ((number,), {"line": ONE, "at": at, "tags": tags})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, ONE, 3), {}),
        ((1, ONE), {"line": ONE}),
        ((), {"number": 1, "line": ONE}),
        ((1, ONE), {"x": 1}),
    ],
)
def test_a_wrong_call_is_a_type_error(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """As Python would say, before anything is written."""
    with pytest.raises(TypeError, match="order' cannot be called like this") as caught:
        ORDER.pack(args, kwargs)
    assert isinstance(caught.value, WrongArgumentsError)


def test_an_argument_of_the_wrong_type_is_named() -> None:
    """The place in the message begins with the argument's name."""
    with pytest.raises(EncodeError, match=r"the arguments of 'order' .* at `\$\.number`"):
        ORDER.pack(("1", ONE), {})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            b'{"number":1,"line":{"sku":"a","price":"1"},"colour":1}',
            "has no argument 'colour'; it takes 'number', 'line'",
        ),
        (b'{"number":1}', "missing required field `line`"),
        (b"[1]", "Expected `object`"),
        (b"{", "truncated"),
    ],
)
def test_arguments_that_the_function_no_longer_takes_are_named(data: bytes, problem: str) -> None:
    """Who changed the function reads what old runs were started with."""
    with pytest.raises(DecodeError) as caught:
        ORDER.unpack(data)
    assert problem in str(caught.value)


def test_the_result_has_the_declared_type() -> None:
    """Of a coroutine function, the type of what is awaited."""
    assert ORDER.result.unpack(ORDER.result.pack(APPLE)) == APPLE
    assert ORDER.result.what == "the result of 'order'"


def later() -> Awaitable[date]:
    """A plain function that gives something to await."""
    raise NotImplementedError


def started() -> Coroutine[Any, Any, date]:
    """A plain function that gives a coroutine."""
    raise NotImplementedError


@pytest.mark.parametrize("function", [later, started])
def test_a_result_that_is_annotated_as_an_awaitable_is_what_it_gives(function: Any) -> None:
    """A plain function may return a coroutine of another one."""
    result = signature_of(function, skip_first=False).result
    assert result.unpack(result.pack(date.min)) == date.min


def test_a_function_without_annotations_takes_plain_data() -> None:
    """Nothing has to be declared for JSON-shaped data."""

    def loose(ctx, a, b=2):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- what is tested
        raise NotImplementedError

    signature = signature_of(loose, skip_first=True)
    assert signature.unpack(signature.pack((1,), {"b": [2]})) == ((), {"a": 1, "b": [2]})
    assert signature.result.pack({"a": None}) == b'{"a":null}'


def fails() -> Never:
    """It only raises."""
    raise NotImplementedError


def anything(*args: object, **kwargs: Opaque) -> object:
    """It takes anything."""
    raise NotImplementedError


def spread(*numbers: int) -> None:
    """Its arguments have no names."""
    raise NotImplementedError


def options(**more: int) -> None:
    """Its arguments have any names."""
    raise NotImplementedError


def absent(one: Missing) -> None:
    """It takes a type that is not there at run time."""
    raise NotImplementedError


def opaque(one: Opaque) -> None:
    """It takes what nothing can store."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (spread, "stored arguments need names, so it cannot take *numbers;"),
        (options, "stored arguments need names, so it cannot take **more;"),
        (absent, "name 'Missing' is not defined"),
        (opaque, "Opaque cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_at_the_definition(function: Any, problem: str) -> None:
    """The message names the function and the reason."""
    with pytest.raises(DeclarationError) as caught:
        signature_of(function, skip_first=False)
    assert f"'{function.__name__}'" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("function", [fails, anything, spread, absent, opaque])
def test_a_step_may_take_anything(function: Any) -> None:
    """Only the result of a step is stored, so only its type has to be one that can be."""
    assert signature_of(function, skip_first=False, stored=False).result.pack(None) == b"null"


# --- digests ------------------------------------------------------------------------------------------------------

STEADY = """
from datetime import date
from tests.unit.workflows.test_definition import *
words = {"a", "b", "c", "d", "e"}
data = {"z": 1, "a": {"c": words, "b": 2}}
print(digest((data, frozenset(words), ONE, APPLE, Basket(items=[APPLE])), {"x": 1, "k": words}))
"""


def test_a_digest_is_the_same_in_every_process() -> None:
    """Neither the order of sets nor that of keyword arguments shows."""
    found = {
        subprocess.run(
            [sys.executable, "-c", STEADY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1
    assert len(found.pop()) == 16


@given(plain, plain)
def test_a_digest_tells_arguments_apart(one: object, other: object) -> None:
    """Equal JSON has equal digests, other JSON has others, and it matters which argument it is."""
    assert digest((one,), {}) == digest((one,), {})
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest((one,), {"k": 1}) == digest((other,), {"k": 1})) is same
    assert digest((one, 5), {}) != digest((5, one, None), {})


@pytest.mark.parametrize("value", [object(), lambda: None, {1, "a"}, "\ud800", 10**5000], ids=type)
def test_what_cannot_be_encoded_has_no_digest(value: object) -> None:
    """Steps may take anything; what cannot be compared is not compared."""
    assert digest((value,), {}) == ""
