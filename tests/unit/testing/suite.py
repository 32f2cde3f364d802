"""Running the conformance suite by hand, to see whether it fails when it should."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from standfast.keys import RecordKey
from standfast.stores import GroupedStore
from standfast.testing import VirtualClock
from standfast.testing.conformance import StoreConformance
from standfast.testing.conformance.store import handles, races

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.testing.tiny import Tiny

    Case = tuple[str, dict[str, Any]]

HARDLY_ANY_TIME = 0.05


def cases() -> Iterator[Case]:
    """Return every test of the suite with each of its parameters."""
    for name in sorted(dir(StoreConformance)):
        if name.startswith("test_"):
            yield from ((name, given) for given in parameters(getattr(StoreConformance, name)))


def parameters(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Return what a test is parametrized with."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for choice in itertools.product(*(mark.args[1] for mark in marks)):
        yield {mark.args[0]: value for mark, value in zip(marks, choice, strict=True)}


async def run(case: Case, backend: type[Tiny]) -> None:
    """Run one test on a fresh store."""
    name, given = case
    clock = VirtualClock()
    shared = backend(clock)

    async def open_another() -> GroupedStore:
        return GroupedStore(shared)

    store = GroupedStore(shared)
    fixtures = {
        "store": store,
        "clock": clock,
        "open_another": open_another,
        "key": functools.partial(RecordKey, f"suite-{uuid.uuid4().hex}"),
        "attempt": f"{uuid.uuid4().hex}.1",
        "history_seed": 1,
        **given,
    }
    test = getattr(StoreConformance(), name)
    try:
        await test(**{wanted: fixtures[wanted] for wanted in inspect.signature(test).parameters})
    finally:
        await store.aclose()


def failures(backend: type[Tiny], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the tests of the suite that a backend fails."""
    for module in (races, handles):
        monkeypatch.setattr(module, "SOON", HARDLY_ANY_TIME)
    for case in cases():
        try:
            asyncio.run(run(case, backend))
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 -- whichever way a test fails
            yield case[0]
