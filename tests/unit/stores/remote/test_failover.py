"""Which server is the primary, and whether it has what was acknowledged: the decisions, without a server."""

from __future__ import annotations

import pytest

from standfast.errors import StoreRewoundError, StoreUnavailableError
from standfast.stores.remote.failover import PrimaryTracker, ServerEpoch

FIRST, SECOND = ServerEpoch("cluster", 1, "one:5432"), ServerEpoch("cluster", 2, "two:5432")
UNCOUNTED = [ServerEpoch(name, place="db:3306") for name in ("a", "b")]


def met(*epochs: ServerEpoch) -> PrimaryTracker:
    """Return a tracker that has met servers which have everything."""
    tracker = PrimaryTracker("store")
    for epoch in epochs:
        tracker.meet(epoch, {}, {})
    return tracker


def test_a_promotion_moves_all_connections_on_once() -> None:
    """Who listens is told, and a second connection to the new primary moves nothing."""
    tracker, told = met(FIRST), list[int]()
    end = tracker.listen(lambda: told.append(tracker.moves))

    assert [tracker.meet(SECOND, {}, {}) for _ in range(2)] == [1, 1]

    end()
    assert told == [1]


def test_an_older_timeline_is_a_server_that_was_replaced() -> None:
    """It is refused by name, and nothing else changes."""
    tracker = met(FIRST, SECOND)

    with pytest.raises(StoreUnavailableError, match=r"one:5432 \(epoch 1\) was replaced by two:5432 \(epoch 2\)"):
        tracker.meet(FIRST, {"h": 3}, {})

    assert tracker.epoch == SECOND
    tracker.check()


def test_fewer_attempts_than_were_acknowledged_are_a_loss_for_good() -> None:
    """Every later call raises it, also at a server that has everything."""
    tracker = met(FIRST)
    tracker.acknowledge("h", 7)

    with pytest.raises(StoreRewoundError, match="lacks commits"):
        tracker.meet(SECOND, tracker.expected(), {"h": 6})
    with pytest.raises(StoreRewoundError):
        tracker.check()
    with pytest.raises(StoreRewoundError):
        tracker.meet(SECOND, tracker.expected(), {"h": 7})


def test_an_attempt_that_was_counted_and_not_acknowledged_is_no_loss() -> None:
    """The server may have more than this process knows of, and handles that are closed are not asked for."""
    tracker = met(FIRST)
    tracker.acknowledge("h", 7)
    tracker.acknowledge("closed", 2)
    tracker.forget("closed")

    assert tracker.meet(SECOND, tracker.expected(), {"h": 8}) == 1


def test_where_promotions_are_not_counted_a_server_that_was_left_is_the_old_one() -> None:
    """It lacks what its successor acknowledged, which is no loss; if it has everything, it is taken again."""
    tracker = met(*UNCOUNTED)
    tracker.acknowledge("h", 7)

    with pytest.raises(StoreUnavailableError, match=r"db:3306 \(a\) was replaced by db:3306 \(b\)"):
        tracker.meet(UNCOUNTED[0], tracker.expected(), {"h": 6})

    assert tracker.meet(UNCOUNTED[0], tracker.expected(), {"h": 7}) == 2
