"""The store contract as tests."""

from __future__ import annotations

from standfast.testing.conformance.store.alternatives import AlternativeCases
from standfast.testing.conformance.store.commits import CommitCases, LimitCases, VersionCases, WindowCases
from standfast.testing.conformance.store.handles import (
    CapabilityCases,
    ClosingCases,
    HandleCases,
    SettlingCases,
    WatchCases,
)
from standfast.testing.conformance.store.races import CancellationCases, HistoryCases, RaceCases
from standfast.testing.conformance.store.records import ExpiryCases, NameCases, ScanCases
from standfast.testing.conformance.store.updates import GroupCases, UpdateCases, WorkCases

__all__ = ["StoreConformance"]


class StoreConformance(
    CommitCases,
    LimitCases,
    VersionCases,
    WindowCases,
    ExpiryCases,
    ScanCases,
    NameCases,
    UpdateCases,
    WorkCases,
    AlternativeCases,
    GroupCases,
    RaceCases,
    HistoryCases,
    CancellationCases,
    WatchCases,
    HandleCases,
    ClosingCases,
    SettlingCases,
    CapabilityCases,
):
    """The store contract as tests: subclass it and provide a ``store`` fixture.

    A backend is done when it passes. The data need not be empty: each test uses a namespace of its own.

        class TestMyStore(StoreConformance):
            @pytest.fixture
            async def store(self):
                store = GroupedStore(MyBackend(...))
                yield store
                await store.aclose()

    Two more fixtures let it look closer; tests that need them are skipped otherwise:

    ``open_another``
        returns a coroutine function that opens another handle on the same data.
    ``clock``
        returns the :class:`~standfast.testing.VirtualClock` that the store goes by. Without it, tests of time wait for
        real fractions of a second, by the store's own time.
    """
