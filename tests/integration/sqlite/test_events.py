"""What an SQLite store tells its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import standfast as sf
from standfast.events import Checkpointed, Event, SlowCommit, Swept
from standfast.stores import Decision, Put, Snapshot
from standfast.stores import group_commit as group
from standfast.stores.sqlite import backend as upkeep

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_slow_transaction_is_told_with_the_number_of_its_riders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches a store hears which transactions take long."""
    monkeypatch.setattr(group, "SLOW_COMMIT", -1.0)
    told: list[Event] = []

    async with sf.open(f"sqlite:///{tmp_path}/h.db", hooks=[told.append]) as space:
        await space.commit(Put(space.key("note"), b""))

    assert [(event.store, event.riders) for event in told if isinstance(event, SlowCommit)] == [
        (f"sqlite:///{tmp_path}/h.db", 1)
    ]


async def test_checkpoints_and_sweeps_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep says what it did: pages written back, expired records removed."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_PAGES", 1)
    monkeypatch.setattr(upkeep, "EVERY", -1.0)
    told: list[Event] = []

    async with sf.open(f"sqlite:///{tmp_path}/h.db", hooks=[told.append]) as space:
        key = space.key("note")

        def expired(seen: Snapshot) -> Decision[None]:
            return Decision(None, (Put(key, b"", seen.version(key), expires_at=seen.at),))

        while not {Checkpointed, Swept} <= {type(event) for event in told}:
            await space.update([key], expired)

    assert all(event.remaining == 0 for event in told if isinstance(event, Checkpointed))
