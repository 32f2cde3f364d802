"""What each policy comes to in a line."""

from __future__ import annotations

import pytest

from standfast.flows.arbiter.protocol import MOST_WAITING, PATIENCE, QueueRules, queue_rules_of
from standfast.policies import Batch, Debounce, Join, Latest, Policy, Queue, Reject, Restart


@pytest.mark.parametrize(
    ("policy", "rules"),
    [
        (Queue(max_waiting=5, timeout="2s"), QueueRules(budget=2.0, most_waiting=5)),
        (Queue(timeout=None), QueueRules(budget=None)),
        (Reject(), QueueRules(waits=False)),
        (Restart(grace="2s"), QueueRules(budget=PATIENCE + 2, most_waiting=MOST_WAITING, supersedes="all", grace=2.0)),
        (Join(), QueueRules(joins=True)),
        (Latest(), QueueRules(budget=None, most_waiting=None, supersedes="waiting")),
        (Debounce("1s"), QueueRules(budget=None, most_waiting=None)),
        (Batch(3, "1s"), QueueRules(budget=None, most_waiting=None)),
    ],
)
def test_a_policy_has_its_rules(policy: Policy, rules: QueueRules) -> None:
    """A pure function of the policy."""
    assert queue_rules_of(policy) == rules


@pytest.mark.parametrize(
    ("policy", "budget"),
    [
        (Queue(), None),
        (Queue(timeout="2s"), 2.0),
        (Restart(), None),
        (Join(), None),
        (Latest(), None),
        (Debounce("1s"), None),
    ],
)
def test_what_was_acknowledged_waits_as_long_as_it_takes(policy: Policy, budget: float | None) -> None:
    """Only a time that is declared ends the waiting of a request that no caller waits for."""
    assert queue_rules_of(policy, attended=False).budget == budget
