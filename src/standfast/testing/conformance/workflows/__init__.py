"""The promises of durable workflows as tests, over any store."""

from __future__ import annotations

from standfast.testing.conformance.workflows.branches import BranchCases, ChildCases, ContinuingCases
from standfast.testing.conformance.workflows.fleet import FleetCases, TakingOverCases
from standfast.testing.conformance.workflows.limits import StartLimitCases
from standfast.testing.conformance.workflows.locks import HoldingCases, StateCases
from standfast.testing.conformance.workflows.operations import AgainCases, LookingCases, PurgingCases
from standfast.testing.conformance.workflows.runs import CancellingCases, CrashingCases, RunningCases, StartingCases
from standfast.testing.conformance.workflows.schedules import ScheduleCases, TickingCases
from standfast.testing.conformance.workflows.sizes import SizeCases, TransactionCases
from standfast.testing.conformance.workflows.waits import RunUpdateCases, SignalCases, SleepingCases

__all__ = ["WorkflowConformance"]


class WorkflowConformance(
    RunningCases,
    StartingCases,
    SleepingCases,
    SignalCases,
    RunUpdateCases,
    BranchCases,
    ChildCases,
    ContinuingCases,
    HoldingCases,
    StateCases,
    CancellingCases,
    StartLimitCases,
    ScheduleCases,
    TickingCases,
    FleetCases,
    TakingOverCases,
    CrashingCases,
    LookingCases,
    AgainCases,
    PurgingCases,
    SizeCases,
    TransactionCases,
):
    """The promises of durable workflows, start limits and schedules as tests: provide an ``open_another`` fixture.

    A store that passes :class:`~standfast.testing.conformance.StoreConformance` passes it too. It is run over each
    store all the same. The data need not be empty: each test uses a namespace of its own.

        class TestMyWorkflows(WorkflowConformance):
            @pytest.fixture
            def open_another(self):
                async def open_it():
                    return GroupedStore(MyBackend(...))
                return open_it

    Tests wait for milliseconds of real time, those of leases for the shortest that the store takes, and those of
    schedules for a second or two. Two more fixtures change that:

    ``clock``
        returns the :class:`~standfast.testing.VirtualClock` that the store goes by, made with the running loop, so
        that it follows real time and tests can let more of it pass.
    ``patience``
        returns how many seconds a test may wait for a lease, 2 by default. Where the shortest lease is longer than
        that, one test waits for it, and the others are skipped.
    """
