"""What the tests of the SQLite store share: a database, handles that get closed, children that get ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pytest

from standfast.clock import SYSTEM_CLOCK
from standfast.stores.url import open_store
from tests.integration.sqlite.children import Child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from standfast.clock import Clock
    from standfast.events import Hook
    from standfast.stores import GroupedStore


class Start(Protocol):
    """Starts a program; see :class:`Child`."""

    def __call__(self, program: str, *arguments: object, under: Sequence[str] = (), umask: int = -1) -> Child:
        """Start it."""
        ...


Look: TypeAlias = "Callable[[], dict[str, Any]]"
"""Looks into the database of the test."""


class Open(Protocol):
    """Opens a handle that is closed after the test."""

    async def __call__(self, url: str, *, clock: Clock = ..., hooks: Iterable[Hook] = ...) -> GroupedStore:
        """Open it."""
        ...


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database of this test is."""
    return tmp_path / "store.db"


@pytest.fixture
def url(path: Path) -> str:
    """The URL of the database of this test."""
    return f"sqlite:///{path}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs that are ended after the test."""
    children: list[Child] = []

    def begin(program: str, *arguments: object, under: Sequence[str] = (), umask: int = -1) -> Child:
        children.append(Child(program, *arguments, under=under, umask=umask))
        return children[-1]

    yield begin
    for child in children:
        child.kill()


@pytest.fixture
def look(start: Start, path: Path) -> Look:
    """Look into the database of this test from another process, after SQLite has checked it."""

    def check_and_look() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(" ".join(start("look", path).hear()))
        assert found["integrity"] == "ok"
        return found

    return check_and_look


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Open handles that are closed after the test."""
    stores: list[GroupedStore] = []

    async def begin(url: str, *, clock: Clock = SYSTEM_CLOCK, hooks: Iterable[Hook] = ()) -> GroupedStore:
        stores.append(await open_store(url, clock=clock, hooks=hooks))
        return stores[-1]

    yield begin
    for store in stores:
        await store.aclose()
