"""The test kit: what Standfast is tested with, for testing what you build on it.

Nothing in Standfast imports it. The store contract as a test suite is in :mod:`standfast.testing.conformance`, which
needs pytest.
"""

from __future__ import annotations

from standfast.testing.explorer import Exploration, Violation, explore
from standfast.testing.faults import ROUGH, Faults, FaultyBackend, FaultyStore, NonAtomicStore
from standfast.testing.histories import (
    History,
    Operation,
    RecordingStore,
    Specification,
    StoreModel,
    StoreSpecification,
    check_store_history,
    linearize,
)
from standfast.testing.simulation import SimulatedLoop, Trace, VirtualClock, simulate

__all__ = [
    "ROUGH",
    "Exploration",
    "Faults",
    "FaultyBackend",
    "FaultyStore",
    "History",
    "NonAtomicStore",
    "Operation",
    "RecordingStore",
    "SimulatedLoop",
    "Specification",
    "StoreModel",
    "StoreSpecification",
    "Trace",
    "Violation",
    "VirtualClock",
    "check_store_history",
    "explore",
    "linearize",
    "simulate",
]
