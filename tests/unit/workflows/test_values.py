"""Stored arguments and results: what comes back equals what went in, and what would not is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Raw, Struct
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field

from standfast.codec import MAX_BYTES, MAX_DEPTH, MAX_DIGITS, Codec
from standfast.errors import DeclarationError, DecodeError, EncodeError
from standfast.workflows.values import PLAIN, Typed, signature_of

T = TypeVar("T")


class Colour(Enum):
    """An enum of texts."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    """An enum of numbers."""

    LOW = 1


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: float


class Options(TypedDict, total=False):
    """A dict with known keys."""

    deep: bool
    name: str


class Tagged(Struct, frozen=True, tag="t"):
    """A struct of msgspec."""

    at: datetime
    parts: tuple[int, ...] = ()


class Box(Struct, Generic[T]):
    """A generic struct."""

    item: T


@dataclass
class Line:
    """A dataclass that holds its like."""

    sku: str
    price: Decimal
    inner: list[Line] = field(default_factory=list)


@dataclass(eq=False)
class Unequal:
    """A dataclass that does not compare its fields."""

    number: int
    ratio: float = 1.0


class Item(BaseModel):
    """A model, whose field has another name outside, and which works something out."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    sku: str = Field(alias="SKU")
    price: Decimal
    at: date
    marks: frozenset[str] = frozenset()

    @computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def year(self) -> int:
        """Not a field, so it must not be read back."""
        return self.at.year


class Basket(BaseModel):
    """A model that holds models."""

    items: list[Item]
    note: str | None = None


@dataclass
class Parcel:
    """A dataclass that holds models."""

    basket: Basket | None
    by_day: dict[str, list[Item]]


APPLE = Item(SKU="apple", price=Decimal("1.10"), at=date(2025, 6, 15), marks=frozenset({"a", "b"}))
finite = st.floats(allow_nan=False, allow_infinity=False)
moments = st.datetimes(timezones=st.just(UTC))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, plain),
    (datetime, moments | st.datetimes()),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False)),
    (UUID, st.uuids()),
    (bytes, st.binary()),
    (float, finite),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Point, st.builds(Point, st.integers(), finite)),
    (Options, st.fixed_dictionaries({}, optional={"deep": st.booleans(), "name": st.text()})),
    (Tagged, st.builds(Tagged, moments, st.lists(st.integers()).map(tuple))),
    (Tagged | int | None, st.none() | st.integers() | st.builds(Tagged, moments)),
    (Box[date], st.builds(Box, st.dates())),
    (dict[UUID, set[int]], st.dictionaries(st.uuids(), st.sets(st.integers()))),
    (Line | None, st.none() | st.builds(Line, st.text(), st.decimals(allow_nan=False, allow_infinity=False))),
    (Annotated[int, Meta(gt=0)], st.integers(min_value=1)),
    (Basket, st.builds(lambda n, note: Basket(items=[APPLE] * n, note=note), st.integers(0, 3), st.none() | st.text())),
    (Parcel, st.builds(Parcel, st.none() | st.just(Basket(items=[APPLE])), st.just({"monday": [APPLE]}))),
]


# --- there and back -----------------------------------------------------------------------------------------------


@given(st.sampled_from(CASES).flatmap(lambda case: st.tuples(st.just(case[0]), case[1])))
def test_a_value_of_a_declared_type_comes_back_equal_or_is_refused(case: tuple[Any, Any]) -> None:
    """What user code sees live is what replay reads, and both equal what was returned."""
    annotation, value = case
    typed: Typed[Any] = Typed(annotation, "the value")
    try:
        data, live = typed.pack_and_restore(value)
    except EncodeError:
        assert isinstance(value, Decimal | timedelta)  # some of these are larger than msgspec reads
        return
    replayed = typed.unpack(data)
    assert live == replayed == value
    assert type(live) is type(replayed) is type(value)
    assert typed.pack(value) == data or "set" in str(annotation)


@given(plain)
def test_stored_values_stand_in_a_record_as_they_are(value: object) -> None:
    """The bytes are bare JSON, which a record takes as a part of its own."""
    codec = Codec(dict[str, Raw])
    record = codec.encode({"result": Raw(PLAIN.pack(value))})
    assert PLAIN.unpack(codec.decode(record)["result"]) == value


def test_a_class_without_an_equality_is_compared_by_its_fields() -> None:
    """``eq=False`` is no reason to refuse a dataclass."""
    restored = Typed(list[Unequal], "it").pack_and_restore([Unequal(5)])[1]
    assert [each.number for each in restored] == [5]


def test_a_declared_float_is_a_float_live_too() -> None:
    """An int that is declared as a float comes back as one, and the live run sees it so."""
    assert repr(Typed(float, "it").pack_and_restore(1)[1]) == "1.0"


def test_a_strict_model_with_an_alias_and_a_computed_field_comes_back() -> None:
    """Models are written under the names that they read, without what they work out."""
    data, live = Typed(Item, "it").pack_and_restore(APPLE)
    assert live == APPLE
    assert b'"SKU"' in data
    assert b"year" not in data


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (Any, datetime.now(UTC), "$ is a datetime and would come back as str; declare a type"),
        (Any, [Decimal(1)], "$[0] is a Decimal"),
        (Any, {"id": UUID(int=1)}, "$.id is a UUID"),
        (Any, b"hunter2", "$ is a bytes"),
        (Any, APPLE, "$ is a Item and would come back as dict"),
        (Any, math.nan, "not a finite number"),
        (float, -math.inf, "$ is not a finite number"),
        (str, "\ud800", "surrogate"),
        (int, "hunter2", "Expected `int`, got `str`"),
        (float, 2**53 + 1, "$ is a int"),
        (Decimal, Decimal("NaN"), "would not come back equal"),
        (Decimal, Decimal("sNaN"), "cannot be compared"),
        (Any, 10**MAX_DIGITS, "cannot be stored"),
        (Any, "x" * MAX_BYTES, "bytes, at most"),
        (Line, Unequal(1), "missing required field"),
        (Any, object(), "type object cannot be stored"),
        (Any, {"a": {"b": [1, object()]}}, "or plain data - at `$.a.b[1]`"),
        (list[float], [1.0, math.nan], "$[1] is not a finite number"),
        (Basket, {"items": 5}, "Basket does not take it: items (list_type)"),
        (Item, Item.model_construct(sku="hunter2", price=math.inf, at=date.min), "Item"),
    ],
    ids=lambda each: each[:30] if isinstance(each, str) else "",
)
def test_what_would_not_come_back_equal_is_refused(annotation: object, value: object, problem: str) -> None:
    """The error names the place and the way out, and never the value."""
    with pytest.raises(EncodeError) as caught:
        Typed(annotation, "the result of 'charge'").pack(value)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("the result of 'charge' ")
    assert "hunter2" not in str(caught.value)


def test_endless_and_very_deep_data_is_refused() -> None:
    """Neither a list in itself nor ten thousand levels exhaust the stack."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    deep_in_itself: list[Any] = []
    deep_in_itself.append(deep_in_itself)
    for value in (deep, deep_in_itself):
        with pytest.raises(EncodeError, match="nested"):
            PLAIN.pack(value)


def test_a_value_leaves_room_for_the_record_around_it() -> None:
    """What can be packed can be written and read inside of a record: bytes, depth and keys."""
    deep: list[Any] = []
    while True:
        try:
            PLAIN.pack([deep])
        except EncodeError:
            break
        deep = [deep]
    record = Codec(dict[str, list[dict[str, Raw]]])
    around = record.encode({"entries": [{"value": Raw(PLAIN.pack(deep))}]})
    assert PLAIN.unpack(record.decode(around)["entries"][0]["value"]) == deep
    assert str(deep).count("[") > MAX_DEPTH * 0.8


@pytest.mark.parametrize("data", [b"", b"{", b'{"SKU":"hunter2"}', b"[" * 100_000, b" " * MAX_BYTES, b"\xff"], ids=len)
def test_damaged_data_is_a_decode_error(data: bytes) -> None:
    """Whatever is stored, reading ends in a value or in one error, without the data."""
    with pytest.raises(DecodeError) as caught:
        Typed(Item, "the result").unpack(data)
    assert "hunter2" not in str(caught.value)


class Opaque:
    """A class that nothing reads."""


@pytest.mark.parametrize("annotation", [Opaque, list[Opaque], dict[str, Opaque | None], complex, Item | int, "x", 5])
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(annotation: object) -> None:
    """Before any step has run for nothing."""
    with pytest.raises(DeclarationError, match=r"the result of 'f'.*cannot be stored"):
        Typed(annotation, "the result of 'f'")


def test_a_union_of_models_says_where_to_put_it() -> None:
    """It has no tag that tells the models apart, but a model that holds the union reads it."""

    class Cat(BaseModel):
        lives: int

    class Dog(BaseModel):
        tricks: list[str]

    class Pet(RootModel[Cat | Dog]):
        pass

    with pytest.raises(DeclarationError, match=r"class Either\(RootModel\[A \| B\]\)"):
        Typed[object](list[Cat | Dog], "the pets")

    assert Typed(Pet, "the pet").unpack(Typed(Pet, "the pet").pack(pet := Pet(Dog(tricks=["roll"])))) == pet


def test_functions_that_take_the_same_share_what_reads_it() -> None:
    """An application of a hundred actions makes one codec for them, not a hundred; a default makes a difference."""

    async def first(number: int, names: list[str]) -> None: ...

    async def second(number: int, names: list[str]) -> str | None: ...

    async def third(number: int, names: list[str] | None = None) -> None: ...

    async def unhashable(number: Annotated[int, {}]) -> None: ...

    one, two, other, odd = (signature_of(each, skip_first=False) for each in (first, second, third, unhashable))

    assert one.arguments is two.arguments
    assert other.arguments is not one.arguments
    assert odd.unpack(odd.pack((1,), {})) == ((), {"number": 1})
