"""The contract on real servers, in a time box: every store's own contract always, the rest as far as time goes.

``make prove`` has no box. In it, a different part of what does not fit is tried every day.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.conformance import StoreConformance
from tests.sizes import PROVE, Tally, tallies

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 40.0
"""How long the contract may take on all servers together, in each process that tests run in."""

_tally = Tally("contracts on servers", 0)


def _is_boxed(item: pytest.Item) -> bool:
    return "tests/conformance/" in item.nodeid and item.get_closest_marker("services") is not None


def _is_first(item: pytest.Item) -> bool:
    """Tell whether a case belongs to the contract of stores, on which everything else stands."""
    found = getattr(item, "cls", None)
    return found is not None and issubclass(found, StoreConformance)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the cases on servers last: the contract of stores, and then the others in the order of the day."""
    boxed = [item for item in items if _is_boxed(item)]
    _tally.full = len(boxed)
    if PROVE or not boxed:
        return
    first = [item for item in boxed if _is_first(item)]
    others = [item for item in boxed if not _is_first(item)]
    random.Random(dt.datetime.now(dt.UTC).date().toordinal()).shuffle(others)
    items[:] = [*(item for item in items if not _is_boxed(item)), *first, *others]


@pytest.fixture(autouse=True)
def time_box(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave a case out when the box is closed, and say so; the summary has how many were done."""
    item = request.node
    if not _is_boxed(item):
        yield
        return
    if _tally not in tallies:
        tallies.append(_tally)
    if not PROVE and _tally.seconds > SECONDS and not _is_first(item):
        pytest.skip("the time box is closed; make prove has none")
    started = time.monotonic()
    yield
    _tally.done += 1
    _tally.seconds += time.monotonic() - started
