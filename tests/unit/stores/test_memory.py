"""What the store in memory keeps, and for how long."""

from __future__ import annotations

from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.backend import Batch, CommitRider
from standfast.stores.memory import REMEMBERED_VERDICTS, Memory


def test_what_is_remembered_of_attempts_is_bounded_by_their_riders() -> None:
    """An attempt of a thousand riders weighs a thousand times as much as an attempt of one."""
    memory = Memory()
    rider = CommitRider((Put(RecordKey("ns", "k"), b"", expected=1),))
    for number in range(REMEMBERED_VERDICTS // 1000 + 1):
        memory.apply(Batch(f"many.{number + 1}", (rider,) * 1000))

    assert memory.settle("many.1") is None
    assert memory.settle("many.3") is not None
