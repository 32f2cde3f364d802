"""The promises of durable workflows as tests."""

from __future__ import annotations

from holdfast.testing.conformance.workflows.branches import BranchCases, ChildCases, ContinuingCases
from holdfast.testing.conformance.workflows.crashing import CrashingCases
from holdfast.testing.conformance.workflows.ending import CancellingCases
from holdfast.testing.conformance.workflows.fleet import FleetCases, TakingOverCases
from holdfast.testing.conformance.workflows.holding import HoldingCases, StateCases
from holdfast.testing.conformance.workflows.limits import LimitCases
from holdfast.testing.conformance.workflows.operating import AgainCases, LookingCases, PurgingCases
from holdfast.testing.conformance.workflows.running import RunningCases, StartingCases
from holdfast.testing.conformance.workflows.schedules import ScheduleCases, TickingCases
from holdfast.testing.conformance.workflows.sizes import SizeCases, TransactionCases
from holdfast.testing.conformance.workflows.waking import SignalCases, SleepingCases, UpdateCases


class WorkflowConformance(
    RunningCases,
    StartingCases,
    SleepingCases,
    SignalCases,
    UpdateCases,
    BranchCases,
    ChildCases,
    ContinuingCases,
    HoldingCases,
    StateCases,
    CancellingCases,
    LimitCases,
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
    """The promises of durable workflows, start limits and schedules as tests."""
