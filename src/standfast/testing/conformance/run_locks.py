"""The promises of run locks as tests."""

from __future__ import annotations

from standfast.testing.conformance.runs.driven import DrivenRunCases
from standfast.testing.conformance.runs.holding import FencingCases, HoldingCases, InspectionCases
from standfast.testing.conformance.runs.leasing import LapsingCases, LeasingCases, TokenCases


class RunLockConformance(
    LeasingCases, TokenCases, LapsingCases, FencingCases, InspectionCases, HoldingCases, DrivenRunCases
):
    """The promises of run locks as tests: subclass it and provide a ``store`` fixture.

    A store that passes :class:`~standfast.testing.conformance.StoreConformance` passes it too. It takes the same
    fixtures: ``store``, and if it can be, ``open_another`` and ``clock``. The data need not be empty. Where the
    shortest lease is longer than the ``patience`` fixture says, 2 seconds by default, one test waits for it, and the
    others are skipped.
    """
