"""The store contract as tests."""

from __future__ import annotations

from holdfast.testing.conformance.cancellation import CancellationCases
from holdfast.testing.conformance.closing import CapabilityCases, ClosingCases, SettlingCases
from holdfast.testing.conformance.commits import CommitCases
from holdfast.testing.conformance.expiry import ExpiryCases
from holdfast.testing.conformance.groups import GroupCases
from holdfast.testing.conformance.handles import HandleCases
from holdfast.testing.conformance.histories import HistoryCases
from holdfast.testing.conformance.limits import LimitCases
from holdfast.testing.conformance.names import NameCases
from holdfast.testing.conformance.races import RaceCases
from holdfast.testing.conformance.scans import ScanCases
from holdfast.testing.conformance.updates import UpdateCases
from holdfast.testing.conformance.versions import VersionCases
from holdfast.testing.conformance.watching import WatchCases
from holdfast.testing.conformance.windows import WindowCases
from holdfast.testing.conformance.works import WorkCases


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
        returns the :class:`~holdfast.testing.VirtualClock` that the store goes by. Without it, tests of time wait for
        real fractions of a second, by the store's own time.
    """
