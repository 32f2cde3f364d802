"""The promises of durable locks as tests, over any store."""

from __future__ import annotations

from standfast.testing.conformance.locks.cancellation import LockCancellationCases
from standfast.testing.conformance.locks.exclusion import ExclusionCases, ModeCases, ResizingCases, WeightCases
from standfast.testing.conformance.locks.expiry import LockExpiryCases, LosingCases
from standfast.testing.conformance.locks.fences import FenceCases, RestCases
from standfast.testing.conformance.locks.order import DeadlockCases, OrderCases, TimeoutCases

__all__ = ["LockConformance"]


class LockConformance(
    ExclusionCases,
    OrderCases,
    LockCancellationCases,
    TimeoutCases,
    LockExpiryCases,
    FenceCases,
    LosingCases,
    WeightCases,
    ResizingCases,
    ModeCases,
    DeadlockCases,
    RestCases,
):
    """The promises of durable locks as tests: subclass it and provide an ``open_another`` fixture.

    A store that passes :class:`~standfast.testing.conformance.StoreConformance` passes it too. It is run over each
    store all the same, with every kind of lock. The data need not be empty: each test uses a namespace of its own.

        class TestMyLocks(LockConformance):
            @pytest.fixture
            def open_another(self):
                async def open_it():
                    return GroupedStore(MyBackend(...))
                return open_it

    Tests of leases wait for real fractions of a second. One more fixture lets it look closer; tests that need it are
    skipped otherwise:

    ``clock``
        returns the :class:`~standfast.testing.VirtualClock` that the store goes by, made with the running loop, so
        that it follows real time and tests can let more of it pass.

    Where the shortest lease is longer than the ``patience`` fixture says, 2 seconds by default, one test waits for it,
    and the others are skipped.
    """
