"""Workflows keep their promises on the store in memory, and on one that can do as little as any server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock
from standfast.testing.conformance import WorkflowConformance
from tests.conformance.modest import MODEST, ModestBackend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class TestMemoryWorkflows(WorkflowConformance):
    """By a clock that follows the loop, and that tests can advance."""

    @pytest.fixture
    async def clock(self) -> VirtualClock:
        """Real time, and whatever a test adds to it."""
        return VirtualClock(asyncio.get_running_loop())

    @pytest.fixture
    def open_another(self, clock: VirtualClock) -> Callable[[], Awaitable[GroupedStore]]:
        """Handles on the same data."""
        memory = MemoryRecords(clock=clock)

        async def open_it() -> GroupedStore:
            return GroupedStore(MemoryBackend(memory))

        return open_it


@pytest.mark.thorough  # memory as it is goes through all of it
class TestModestWorkflows(WorkflowConformance):
    """On a store that sends no hints and takes few changes at a time, by the time of the machine."""

    @pytest.fixture
    def open_another(self) -> Callable[[], Awaitable[GroupedStore]]:
        """Handles on the same data."""
        memory = MemoryRecords(capabilities=MODEST)

        async def open_it() -> GroupedStore:
            return GroupedStore(ModestBackend(memory))

        return open_it
