"""What the store in memory keeps, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.backend import CommitRider, RiderBatch
from standfast.stores.memory import REMEMBERED_VERDICTS, MemoryRecords
from standfast.stores.protocol import Record

if TYPE_CHECKING:
    from standfast.clock import Instant


def test_what_is_remembered_of_attempts_is_bounded_by_their_riders() -> None:
    """An attempt of a thousand riders weighs a thousand times as much as an attempt of one."""
    memory = MemoryRecords()
    rider = CommitRider((Put(RecordKey("ns", "k"), b"", expected=1),))
    for number in range(REMEMBERED_VERDICTS // 1000 + 1):
        memory.apply(RiderBatch(f"many.{number + 1}", (rider,) * 1000))

    assert memory.settle("many.1") is None
    assert memory.settle("many.3") is not None


@pytest.mark.parametrize("reverse", [False, True])
def test_a_page_looks_at_no_more_records_than_it_returns(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 -- a parameter of the test
    """However many come after it."""
    memory, looked = MemoryRecords(), list[RecordKey]()
    root = RecordKey("ns", "k")
    memory.write({root.child(f"{n:04}"): Record(root.child(f"{n:04}"), b"", 1) for n in range(1_000)})
    present = memory._present

    def look(key: RecordKey, at: Instant) -> Record | None:
        looked.append(key)
        return present(key, at)

    monkeypatch.setattr(memory, "_present", look)
    page = memory.scan(*root.within(), limit=10, reverse=reverse)

    assert len(page.records) == 10
    assert page.more is not None
    assert len(looked) == 11  # one more, to know whether there is another page
