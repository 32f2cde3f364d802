"""What actions take and return: checked by their annotations, and described by them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

import standfast as sf
from standfast.errors import InvalidInputError


class Author(pydantic.BaseModel):
    """Who wrote something, as pydantic sees it."""

    name: str


class Document(pydantic.BaseModel):
    """What was written, as pydantic sees it."""

    title: str
    author: Author


@dataclass
class Order:
    """What is ordered."""

    sku: str
    day: date
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


shop = sf.Flow("shop")


@shop.action
async def order(request: sf.Request, what: Order, note: str = "none") -> list[Order]:
    """Order something."""
    return [what, *(request.inputs and [])][: len(note)]


@shop.action(concurrency=sf.Batch(100, "30s", key="tenant"))
async def stock(request: sf.Request, orders: list[Order]) -> int:
    """Put things on the shelf."""
    return len(orders) + len(request.inputs)


@shop.action
async def file(request: sf.Request, document: Document) -> Document:
    """Keep a document."""
    return document.model_copy(update={"title": request.id})


@shop.action
async def guess(request: sf.Request, data: Any = None) -> Any:
    """Take anything."""
    return data or request.id


ORDER = b'{"what": {"sku": "x-1", "day": "2030-01-02"}}'


def test_bytes_become_what_the_action_declares() -> None:
    """And what was not sent becomes its default."""
    read = order.read(ORDER)
    assert read.values == {"what": Order("x-1", date(2030, 1, 2)), "note": "none"}
    assert order.arguments(read.packed) == ((), {"what": Order("x-1", date(2030, 1, 2))})


@pytest.mark.parametrize(
    "inputs", [{"what": {"sku": "x-1", "day": "2030-01-02"}}, {"what": Order("x-1", date(2030, 1, 2))}]
)
def test_values_by_name_may_be_data_or_what_the_action_declares(inputs: dict[str, Any]) -> None:
    """A transport has the one, code in the same process the other."""
    assert order.read(inputs).values == order.read(ORDER).values


def test_no_bytes_are_no_inputs() -> None:
    """A request without a body calls an action that needs nothing."""
    assert guess.read(b"").values == {"data": None}
    with pytest.raises(InvalidInputError, match="missing required field `what`"):
        order.read(b"")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"what": {"sku": 7, "day": "2030-01-02"}}', r"Expected `str`, got `int` - at `\$\.what\.sku`"),
        (b'{"what": {"sku": "x", "day": "never"}}', r"at `\$\.what\.day`"),
        (b'{"what": {"sku": "x", "day": "2030-01-02", "count": 0}}', r">= 1 - at `\$\.what\.count`"),
        (b'{"what": {"sku": "x", "day": "2030-01-02"}, "notes": "x"}', "no argument 'notes'; it takes 'what', 'note'"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"what": ', "truncated"),
        (b"\xff", "malformed"),
        (b"[" * 1_000, "depth|deep|nested"),
        (b'{"what": {"sku": "x", "sku": "y", "day": "2030-01-02"}}', "twice"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_place(body: bytes, problem: str) -> None:
    """The action, and where in the data."""
    with pytest.raises(InvalidInputError, match=f"^flow 'shop', action 'order': .*({problem})") as refused:
        order.read(body)
    assert refused.value.status == 422


@pytest.mark.parametrize(
    "inputs",
    [
        b'{"what": {"sku": "x", "day": "sesame"}}',
        b'{"what": "sesame"}',
        {"what": {"sku": "x", "day": "2030-01-02", "count": "sesame"}},
        {"what": b"sesame"},
    ],
)
def test_a_refusal_never_shows_the_value(inputs: Any) -> None:
    """Errors end up in logs and answers; data that was sent does not."""
    with pytest.raises(InvalidInputError) as refused:
        order.read(inputs)
    assert "sesame" not in repr(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("data", [float("nan"), b"x", {1, 2}])
def test_what_would_not_come_back_equal_is_refused(data: object) -> None:
    """Also where anything goes."""
    with pytest.raises(InvalidInputError):
        guess.read({"data": data})


def test_a_refusal_is_short_however_long_the_names_are() -> None:
    """What was sent cannot fill a log."""
    with pytest.raises(InvalidInputError) as refused:
        order.read({"x" * 100_000: 1})
    assert len(str(refused.value)) < 400


def test_a_request_of_a_batch_brings_one_item() -> None:
    """And the run gets the list of all, the oldest first."""
    packed = [stock.read({"orders": {"sku": sku, "day": "2030-01-02"}}).packed for sku in ("a", "b")]
    args, kwargs = stock.arguments(*packed)
    assert (args, [each.sku for each in kwargs["orders"]]) == ((), ["a", "b"])


def test_a_list_is_no_item_of_a_batch() -> None:
    """Who sends a whole list to an action that is batched is told so."""
    with pytest.raises(InvalidInputError, match=r"got `array` - at `\$\.orders`"):
        stock.read(b'{"orders": []}')


def test_models_of_pydantic_are_read_and_described() -> None:
    """What a model refers to can be found from the root of the schema."""
    read = file.read(b'{"document": {"title": "t", "author": {"name": "ada"}}}')
    assert read.values["document"] == Document(title="t", author=Author(name="ada"))
    assert "Author" in file.input_schema()["$defs"]
    assert file.output_schema()["$defs"]["Author"]["required"] == ["name"]


def test_the_schema_of_inputs_is_an_object_with_defaults() -> None:
    """As tools and OpenAPI want it: no reference at the root, and nothing else is taken."""
    schema = order.input_schema()
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["what"], False)
    assert schema["properties"]["note"] == {"type": "string", "default": "none"}
    assert schema["$defs"]["Order"]["properties"]["day"] == {"type": "string", "format": "date"}


def test_the_schema_of_a_batch_is_that_of_an_item() -> None:
    """It describes what one request brings."""
    assert stock.input_schema()["properties"] == {"orders": {"$ref": "#/$defs/Order"}}


def test_the_schema_of_results_follows_the_annotation() -> None:
    """And says nothing where there is none."""
    assert order.output_schema()["items"] == {"$ref": "#/$defs/Order"}
    assert (stock.output_schema(), guess.output_schema()) == ({"type": "integer"}, {})
