"""The test kit: what Holdfast is tested with, for testing what you build on it.

Nothing in Holdfast imports it. The store contract as a test suite is in :mod:`holdfast.testing.conformance`, which
needs pytest.
"""

from __future__ import annotations

from holdfast.testing.clock import VirtualClock
from holdfast.testing.explorer import Exploration, Violation, explore
from holdfast.testing.faults import ROUGH, Faults
from holdfast.testing.faulty_backend import FaultyBackend
from holdfast.testing.faulty_store import FaultyStore
from holdfast.testing.history import History, RecordingStore
from holdfast.testing.linearizability import Operation, Specification, linearize
from holdfast.testing.loop import SimulatedLoop
from holdfast.testing.model import StoreModel
from holdfast.testing.non_atomic import NonAtomicStore
from holdfast.testing.simulation import simulate
from holdfast.testing.specification import StoreSpecification, check_store_history
from holdfast.testing.trace import Trace

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
