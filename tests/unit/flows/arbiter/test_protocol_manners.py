"""What each policy comes to in a line."""

from __future__ import annotations

import pytest

from standfast.flows.arbiter.protocol import MOST_WAITING, PATIENCE, Manner, manner_of
from standfast.flows.policies import Batch, Debounce, Join, Latest, Policy, Queue, Reject, Restart


@pytest.mark.parametrize(
    ("policy", "manner"),
    [
        (Queue(max_waiting=5, timeout="2s"), Manner(budget=2.0, most_waiting=5)),
        (Queue(timeout=None), Manner(budget=None)),
        (Reject(), Manner(waits=False)),
        (Restart(grace="2s"), Manner(budget=PATIENCE + 2, most_waiting=MOST_WAITING, supersedes="all", grace=2.0)),
        (Join(), Manner(joins=True)),
        (Latest(), Manner(budget=None, most_waiting=None, supersedes="waiting")),
        (Debounce("1s"), Manner(budget=None, most_waiting=None)),
        (Batch(3, "1s"), Manner(budget=None, most_waiting=None)),
    ],
)
def test_a_policy_has_its_manner(policy: Policy, manner: Manner) -> None:
    """A pure function of the policy."""
    assert manner_of(policy) == manner
