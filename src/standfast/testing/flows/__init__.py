"""Testing actions: requests without a server, a store or a policy."""

from __future__ import annotations

from standfast.testing.flows.rehearsal import Rehearsal, StartedRun

__all__ = ["Rehearsal", "StartedRun"]
