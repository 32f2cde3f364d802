"""The store contract as tests."""

from __future__ import annotations

from standfast.testing.conformance.cancellation import CancellationCases
from standfast.testing.conformance.closing import CapabilityCases, ClosingCases, SettlingCases
from standfast.testing.conformance.commits import CommitCases
from standfast.testing.conformance.expiry import ExpiryCases
from standfast.testing.conformance.groups import GroupCases
from standfast.testing.conformance.handles import HandleCases
from standfast.testing.conformance.histories import HistoryCases
from standfast.testing.conformance.limits import LimitCases
from standfast.testing.conformance.names import NameCases
from standfast.testing.conformance.races import RaceCases
from standfast.testing.conformance.scans import ScanCases
from standfast.testing.conformance.updates import UpdateCases
from standfast.testing.conformance.versions import VersionCases
from standfast.testing.conformance.watching import WatchCases
from standfast.testing.conformance.windows import WindowCases
from standfast.testing.conformance.works import WorkCases


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
