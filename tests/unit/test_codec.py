"""Values: what is stored comes back, what would not is refused, and reading is bounded."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Raw, Struct

from standfast import codec
from standfast.codec import MAX_BYTES, MAX_DEPTH, MAX_KEYS, PLAIN, Codec, JsonValue
from standfast.errors import DecodeError, EncodeError, FormatTooNewError
from tests.case_names import shown

if TYPE_CHECKING:
    import random


class Grant(Struct, frozen=True, tag="grant"):
    """A record with a tag, as the layers above store them."""

    holder: str
    fence: int
    until: int | None = None


class Vacant(Struct, frozen=True, tag="vacant"):
    """The other kind of record at the same place."""

    last_fence: int


class Typed(Struct, frozen=True):
    """Fields that plain JSON could not restore."""

    data: bytes
    price: Decimal
    at: Annotated[datetime, Meta(tz=True)]
    pair: tuple[str, int]
    names: frozenset[str]


class Mixed(Struct, frozen=True):
    """A declared record around data that has no declared type."""

    number: int
    ratio: float | None = None
    data: Any = None
    items: list[int] = []


class Colour(Enum):
    """An enum that is not also a text or a number."""

    RED = "red"


PLAIN_TYPES = (dict, list, str, int, float, type(None))
GRANTS: Codec[Grant | Vacant] = Codec(Grant | Vacant, what="the grant")
MIXED = Codec(Mixed)

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> list[Any]:
    """Return a list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


# --- there and back -----------------------------------------------------------------------------------------------


@given(plain_values)
def test_plain_data_comes_back_as_it_was(value: JsonValue) -> None:
    """JSON-shaped data survives exactly, types included."""
    restored = PLAIN.decode(PLAIN.encode(value))
    assert restored == value
    assert repr(restored) == repr(value)


def test_a_record_comes_back_as_its_own_type() -> None:
    """The tag chooses among the types that the codec was declared for."""
    for record in (Grant("p-1", 17), Vacant(17)):
        assert GRANTS.decode(GRANTS.encode(record)) == record


def test_declared_types_restore_what_json_cannot() -> None:
    """Bytes, decimals, times with a zone, tuples and sets come back through their declared types."""
    value = Typed(b"\x00\xff", Decimal("1.10"), datetime.now(UTC), ("a", 1), frozenset({"x"}))
    assert Codec(Typed).decode(Codec(Typed).encode(value)) == value


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**4299])
def test_integers_are_exact_at_any_size(number: int) -> None:
    """Nothing passes through a double: past 2^53 the last digit still counts."""
    assert PLAIN.decode(PLAIN.encode([number])) == [number]


def test_tuples_come_back_as_lists() -> None:
    """JSON has one kind of sequence; without a declared type, that is a list."""
    assert PLAIN.decode(PLAIN.encode({"a": (1, (2,))})) == {"a": [1, [2]]}  # type: ignore[dict-item]  # what is tested


def test_a_value_is_a_format_number_a_colon_and_json() -> None:
    """People and other tools can read what is stored."""
    data = PLAIN.encode({"a": [1, "é"]})
    assert data == '1:{"a":[1,"é"]}'.encode()
    assert json.loads(data.partition(b":")[2]) == {"a": [1, "é"]}


# --- what is refused before it is stored --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "$ is not a finite number"),
        ({"a": [1.0, float("inf")]}, "$.a[1] is not a finite number"),
        ({"price": Decimal("1.10")}, "$.price is a Decimal and would come back as str; declare a type"),
        (b"bytes", "$ is a bytes and would come back as str"),
        ([datetime(2025, 6, 15, tzinfo=UTC)], "$[0] is a datetime"),
        ({1, 2}, "$ is a set and would come back as list"),
        (Colour.RED, "$ is a Colour"),
        (Grant("p", 1), "$ is a Grant and would come back as dict"),
        ({"a": {1: 2}}, "$.a has keys that are not text"),
        ({1: 1, "1": 2}, "$ has keys that are not text"),
        ({"an odd key!": b""}, "$[...] is a bytes"),
        ({None: 1}, "keys"),
        ("half \ud800", "half of a surrogate pair"),
        ({"\udfff": 1}, "half of a surrogate pair"),
        (object(), "type object"),
        (ValueError("x"), "type ValueError"),
        (Raw(b"{{"), "malformed"),
        (Raw(b'{"a":1,"a":2}'), "would come back as dict"),
    ],
    ids=shown,
)
def test_what_would_not_come_back_is_refused(value: Any, problem: str) -> None:
    """The error names the place and the type, and nothing is written."""
    with pytest.raises(EncodeError) as caught:
        PLAIN.encode(value)
    assert problem in str(caught.value)


def test_a_huge_integer_is_refused() -> None:
    """More digits than can be read back are not written."""
    with pytest.raises(EncodeError, match="4300"):
        PLAIN.encode(10**4300)


def test_an_integer_that_could_not_be_read_back_is_refused() -> None:
    """Also when the interpreter's own limit was lifted."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(EncodeError, match="out of range"):
            PLAIN.encode(10**4300)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (Mixed("1"), "Expected `int`, got `str` - at `$.number`"),  # type: ignore[arg-type]  # what is tested
        (Mixed(number=True), "Expected `int`, got `bool`"),
        (Mixed(1, ratio=float("nan")), "$.ratio is not a finite number"),
        (Mixed(1, data=float("-inf")), "$.data is not a finite number"),
        (Mixed(1, data=[b"x"]), "$.data[0] is a bytes"),
        (Mixed(1, items=["x"]), "Expected `int`, got `str`"),  # type: ignore[list-item]  # what is tested
        ({"number": "1"}, "Expected `int`, got `str`"),
    ],
    ids=shown,
)
def test_a_record_that_breaks_its_own_declaration_is_refused(record: Mixed, problem: str) -> None:
    """A wrong type inside a record is found when it is written, not when it is read."""
    with pytest.raises(EncodeError) as caught:
        MIXED.encode(record)
    assert problem in str(caught.value)


def test_a_tuple_where_a_list_is_declared_is_fine() -> None:
    """Nothing is lost by it."""
    record = MIXED.decode(MIXED.encode(Mixed(1, data=(1, 2), items=(3,))))  # type: ignore[arg-type]  # what is tested
    assert record == Mixed(1, data=[1, 2], items=[3])


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 10_000, 200_000])
def test_too_deep_a_value_is_refused_and_does_not_crash(depth: int) -> None:
    """A typed error, not a RecursionError or a segmentation fault."""
    with pytest.raises(EncodeError, match="nested"):
        PLAIN.encode(nested(depth))


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cycle has no end."""
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(EncodeError, match="contains itself"):
        PLAIN.encode(cycle)


def test_too_large_a_value_is_refused() -> None:
    """What no store would take is refused with both numbers."""
    assert len(PLAIN.encode("x" * (MAX_BYTES - 4))) == MAX_BYTES
    with pytest.raises(EncodeError, match="came to 350,001 bytes, at most 350,000"):
        PLAIN.encode("x" * (MAX_BYTES - 3))


def test_an_error_never_shows_a_value() -> None:
    """Messages name places and types; what was stored stays private."""
    for value in ({"password": b"hunter2"}, {"x": "hunter2\ud800"}, Decimal("7.2")):
        with pytest.raises(EncodeError) as caught:
            PLAIN.encode(value)  # type: ignore[arg-type]  # what is tested
        assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}"
    for data in (b'1:{"type":"hunter2"}', b'1:{"type":"grant","holder":7,"hunter2":1}', b'1:"hunter2'):
        with pytest.raises(DecodeError) as refused:
            GRANTS.decode(data)
        assert "hunter2" not in f"{refused.value!r}{refused.value.__cause__!r}"


# --- what is refused when it is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"2:{}", b"10:null", b"999999:"])
def test_a_newer_format_is_refused_as_such(data: bytes) -> None:
    """The reader is told to upgrade, not that the data is damaged."""
    with pytest.raises(FormatTooNewError, match=r"the grant has format \d+, .* reads up to 1; upgrade"):
        GRANTS.decode(data)


@pytest.mark.parametrize(
    "data", [b"", b"1", b":", b"{}", b"01:1", b"0:1", b" 1:1", b"+1:1", b"1000000:1", b"\x80\x04."]
)
def test_data_without_a_format_number_is_refused(data: bytes) -> None:
    """Bare JSON, pickles and noise are not ours."""
    with pytest.raises(DecodeError, match="format number"):
        PLAIN.decode(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"1 2",
        b"NaN",
        b"Infinity",
        b"1e999",
        b"'a'",
        b"[1,]",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        rb'"\ud800 alone"',
        b'"a\nb"',
        b"\xef\xbb\xbf1",
        b"// no\n1",
        b"9" * 4301,
    ],
)
def test_damaged_json_is_refused(body: bytes) -> None:
    """Only strict JSON in strict UTF-8 is read."""
    with pytest.raises(DecodeError):
        PLAIN.decode(b"1:" + body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"b":2,"a":3}',
        rb'{"a":1,"\u0061":2}',
        b'[[{"x":{"y":[{"k":1,"k":2}]}}]]',
        b'{"number":1,"number":2}',
        b'{"number":1,"later":{"k":1,"k":1}}',
    ],
)
def test_a_key_that_comes_twice_is_refused(body: bytes) -> None:
    """Two readers could disagree on which one counts; also in fields that this version does not know."""
    for each in (PLAIN, MIXED) if body.startswith(b'{"number"') else (PLAIN,):
        with pytest.raises(DecodeError, match="a key twice"):
            each.decode(b"1:" + body)


def test_json_that_others_wrote_is_read() -> None:
    """Spaces, another order and unknown fields are fine."""
    assert PLAIN.decode(b'1: { "b" : [ 1 , 2.50 ] , "a" : -0 } ') == {"b": [1, 2.5], "a": 0}
    assert MIXED.decode(b'1:{"later":[{"k":1},{"k":2}],"number":3}') == Mixed(3)


def test_fifty_megabytes_are_refused_unread() -> None:
    """Size is judged first, whatever the bytes are."""
    with pytest.raises(DecodeError, match="came to 50,000,000 bytes"):
        PLAIN.decode(b"[" * 50_000_000)


def test_another_limit_can_be_set() -> None:
    """A codec for small things takes only small things."""
    small = Codec(str, max_bytes=10)
    assert small.decode(small.encode("123456")) == "123456"
    with pytest.raises(DecodeError):
        small.decode(b'1:"1234567"')


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 170_000,
        b"[" * 170_000 + b"]" * 170_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"[0," * 80_000 + b"0" + b"]" * 80_000,
        b'["]",' * 300 + b"0" + b',"["]' * 300,
        b'["\\\\","]",' * 300 + b"0" + b',"\\"["]' * 300,
        b'{"[":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
    ],
    ids=["open", "arrays", "objects", "wide", "brackets-in-strings", "escaped-quotes", "one-too-many"],
)
def test_a_bomb_is_defused_before_it_is_parsed(body: bytes) -> None:
    """Deep nesting is refused by its brackets, before any parser recurses into them."""
    with pytest.raises(DecodeError, match="nested more than 200 levels"):
        PLAIN.decode(b"1:" + body)


def test_the_deepest_allowed_value_is_read() -> None:
    """The limit itself is allowed, with brackets in strings not counted."""
    deepest = nested(MAX_DEPTH - 1)
    value: list[Any] = [deepest, '[{["' * 300, "\\", '\\"[']
    assert PLAIN.decode(PLAIN.encode(value)) == value


def test_too_many_keys_are_refused() -> None:
    """A flood of keys is refused before it is parsed; colons in text are not keys."""
    flood = b",".join(b'"%d":0' % number for number in range(MAX_KEYS + 1))
    roomy: Codec[Any] = Codec(Any, max_bytes=10**7)
    with pytest.raises(DecodeError, match="more than 50,000 keys"):
        roomy.decode(b"1:{" + flood + b"}")
    assert roomy.decode(b'1:"' + b":" * (MAX_KEYS + 1) + b'"') == ":" * (MAX_KEYS + 1)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: b"1:" + tail))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    """Noise gives one of the two errors and nothing else."""
    with suppress(DecodeError, FormatTooNewError):
        assert isinstance(GRANTS.decode(data), Grant | Vacant)
    with suppress(DecodeError, FormatTooNewError):
        assert isinstance(PLAIN.decode(data), PLAIN_TYPES)


@given(plain_values, st.randoms(use_true_random=False))
def test_damaged_values_are_read_or_refused(value: JsonValue, chance: random.Random) -> None:
    """A flipped, lost or doubled byte never gives anything but plain data or the error."""
    data = bytearray(PLAIN.encode(value))
    place = chance.randrange(len(data))
    data[place : place + chance.randrange(2)] = chance.randbytes(chance.randrange(3))
    with suppress(DecodeError, FormatTooNewError):
        assert isinstance(PLAIN.decode(bytes(data)), PLAIN_TYPES)


def slow_structure(text: str) -> str:
    """Find the brackets outside of strings, one character at a time."""
    found, inside, skip = "", False, False
    for character in text:
        if skip:
            skip = False
        elif inside and character == "\\":
            skip = True
        elif character == '"':
            inside = not inside
        elif not inside and character in "[]{}":
            found += character
    return found.replace("{", "[").replace("}", "]")


@given(st.recursive(st.text('[]{}":\\a\n'), lambda inner: st.lists(inner) | st.dictionaries(st.text('[]"\\:'), inner)))
def test_the_quick_look_at_the_structure_agrees_with_the_slow_one(value: JsonValue) -> None:
    """Brackets, quotes and backslashes inside of texts never count as structure."""
    body = json.dumps(value)
    assert codec._outside_strings(body.encode(), b"[]{}").decode() == slow_structure(body)


@pytest.mark.parametrize(("brackets", "depth"), [(b"", 0), (b"[]", 1), (b"[[][]]", 2), (b"[[[]][]][[]]", 3)])
def test_the_depth_is_counted_exactly(brackets: bytes, depth: int) -> None:
    """The depth is that of the innermost level."""
    assert codec._depth(brackets) == depth
