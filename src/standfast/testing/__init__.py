"""The test kit: what Standfast is tested with, for testing what you build on it.

Nothing in Standfast imports it. The store contract as a test suite is in :mod:`standfast.testing.conformance`, which
needs pytest.
"""

from __future__ import annotations

from standfast.testing.clock import VirtualClock
from standfast.testing.explorer import Exploration, Violation, explore
from standfast.testing.faults import ROUGH, Faults
from standfast.testing.faulty_backend import FaultyBackend
from standfast.testing.faulty_store import FaultyStore
from standfast.testing.history import History, RecordingStore
from standfast.testing.linearizability import Operation, Specification, linearize
from standfast.testing.loop import SimulatedLoop
from standfast.testing.model import StoreModel
from standfast.testing.non_atomic import NonAtomicStore
from standfast.testing.simulation import simulate
from standfast.testing.specification import StoreSpecification, check_store_history
from standfast.testing.trace import Trace

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
