"""The contract on real servers and on stores that are varied for tests, in a time box: as far as time goes.

The contract of stores itself is always tried on every server.

``make prove`` has no box. In it, a different part of what does not fit is tried every day.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from typing import TYPE_CHECKING

import pytest

from standfast.testing.conformance import StoreConformance
from tests.sizes import PROVE, Tally, tallies

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 40.0
"""How long these contracts may take together, in each process that tests run in."""

VARIED = {"test_modest.py", "test_faulty.py", "test_sealed.py", "test_documented_backend.py"}
"""Where the contracts are tried on stores in memory that can less, fail more or do more than the ordinary one."""

_tally = Tally("contracts on servers and varied stores", 0)


def _is_on_server(item: pytest.Item) -> bool:
    return item.get_closest_marker("services") is not None


def _is_boxed(item: pytest.Item) -> bool:
    return "tests/conformance/" in item.nodeid and (_is_on_server(item) or item.path.name in VARIED)


def _is_first(item: pytest.Item) -> bool:
    """Tell whether a case belongs to the contract of stores on a server, on which everything else stands."""
    found = getattr(item, "cls", None)
    return found is not None and issubclass(found, StoreConformance) and _is_on_server(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the cases in the box last: the contract of stores, and then the others in the order of the day."""
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
