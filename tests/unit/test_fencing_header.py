"""A fence in an HTTP header: written one way, read back the same, everything else refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import InvalidArgumentError
from standfast.fencing import FENCE_HEADER, FenceHeader, fence_header, parse_fence_header

RESOURCES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=200)


@given(RESOURCES, st.integers(1, 2**53 - 1))
def test_what_was_written_is_read_back(resource: str, fence: int) -> None:
    """Any name and any fence survive the journey, as plain ASCII on one line."""
    value = fence_header(resource, fence)[FENCE_HEADER]
    assert value.isascii()
    assert value.isprintable()
    assert parse_fence_header(f" {value}\t") == FenceHeader(resource, fence)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else than the one error comes out of it, and what is read is what was meant."""
    try:
        found = parse_fence_header(text)
    except InvalidArgumentError:
        return
    assert fence_header(found.resource, found.fence)[FENCE_HEADER] == text.strip(" \t")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "is missing"),
        ("", "a semicolon and a number"),
        ("invoice-7", "a semicolon and a number"),
        (";42", "a semicolon and a number"),
        ("invoice-7;0", "a semicolon and a number"),
        ("invoice-7;042", "a semicolon and a number"),
        ("invoice-7;+42", "a semicolon and a number"),
        ("invoice-7;4_2", "a semicolon and a number"),
        ("invoice-7;٤٢", "a semicolon and a number"),
        ("invoice-7;42, invoice-8;43", "a semicolon and a number"),
        ("invoice-7;42\n", "a semicolon and a number"),
        ("invoice-7;9007199254740992", "above 2**53 - 1"),
        ("invoice-7;99999999999999999", "a semicolon and a number"),
        ("%ff;42", "names no resource"),
        ("%0a;42", "names no resource"),
        ("%zz;42", "escaped in another way"),
        ("%41;42", "escaped in another way"),
        ("x" * 201 + ";42", "names no resource"),
        ("x" * 10_000 + ";42", "10,003 characters long"),
    ],
)
def test_a_header_that_says_nothing_clear_is_refused(value: str | None, problem: str) -> None:
    """One spelling for each fence; the message says what is wrong and shows what is right."""
    with pytest.raises(InvalidArgumentError) as caught:
        parse_fence_header(value)
    assert problem in str(caught.value)
    assert "Standfast-Fence: invoice-7;42" in str(caught.value)


@pytest.mark.parametrize("fence", [0, 2**53, "42", True])
def test_what_is_no_fence_is_not_sent(fence: Any) -> None:
    """A header carries only a fence that somebody can have."""
    with pytest.raises(InvalidArgumentError):
        fence_header("invoice-7", fence)


def test_what_is_no_resource_is_not_sent() -> None:
    """An empty name guards nothing."""
    with pytest.raises(InvalidArgumentError):
        fence_header("", 42)
