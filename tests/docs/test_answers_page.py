"""The reference of answers has every error that a caller can be told of, at the status that it is told with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
ANSWERS, FLOWS = ((REFERENCE / name).read_text(encoding="utf-8") for name in ("answers.md", "flows.md"))
ROW = re.compile(r"^\| (?P<status>\d{3}) \| .+ \| ?(?P<errors>.*?) ?\|$", re.MULTILINE)
NAMED = re.compile(r"`~standfast\.errors\.(\w+)`")
LISTED = re.compile(r"^\| `(?P<error>\w+Error)` \| (?P<status>\d{3}) \|", re.MULTILINE)
AT_HOME = {"NotTheSoleServerError"}
"""What only whoever declares or starts an application is told."""


def kinds(root: type[errors.FlowError] = errors.FlowError) -> Iterator[type[errors.FlowError]]:
    """Yield every kind of error that has a status."""
    for kind in root.__subclasses__():
        yield kind
        yield from kinds(kind)


def rows() -> dict[str, int]:
    """Return the status that the page has for each error."""
    return {
        name: int(row["status"])
        for row in ROW.finditer(ANSWERS)
        for name in NAMED.findall(row["errors"])
        if name != "HttpError"
    }


KINDS = {kind.__name__: kind.status for kind in kinds() if kind is not errors.HttpError}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_an_error_is_listed_at_its_status(name: str) -> None:
    """Whoever gets an answer finds what it means, and whoever raises an error what callers get."""
    assert rows().get(name) == (None if name in AT_HOME else KINDS[name])


@pytest.mark.parametrize("code", sorted(errors.HttpError.REASONS))
def test_a_reason_to_refuse_is_listed_at_its_status(code: str) -> None:
    """Of what is refused before a flow sees it."""
    listed = {row["status"] for row in ROW.finditer(ANSWERS) if f"HttpError` (`{code}`)" in row["errors"]}
    assert listed == {str(errors.HttpError.REASONS[code][0])}


def test_the_table_of_errors_says_the_same_statuses() -> None:
    """Of flows, for those who call them without a transport."""
    listed = {row["error"]: int(row["status"]) for row in LISTED.finditer(FLOWS)}
    assert len(listed) > 20
    assert listed == {name: getattr(errors, name).status for name in listed}


def test_a_status_is_listed_once() -> None:
    """In order."""
    statuses = [int(row["status"]) for row in ROW.finditer(ANSWERS)]
    assert statuses == sorted(set(statuses))
    assert {200, 202, 409, 422, 429, 503} <= set(statuses)
