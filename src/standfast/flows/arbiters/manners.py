"""What each policy comes to in a line: a pure function of the policy."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from standfast.flows.arbiters.protocol import Manner
from standfast.flows.policies import Join, Latest, Queue, Reject, Restart

if TYPE_CHECKING:
    from standfast.flows.policies import Policy

PATIENCE: Final = 30.0
"""Seconds that a request waits for its turn behind other actions, under a policy that is not about waiting."""

MOST_WAITING: Final = 100
"""How many wait for one key under such a policy."""


@lru_cache(maxsize=1_000)
def manner_of(policy: Policy) -> Manner:
    """Return how a request with this policy behaves in its line.

    Runs of the collecting policies (debounce, batch) stand in line like those of a queue, as long as it takes.
    """
    if isinstance(policy, Queue):
        return Manner(budget=policy.timeout, most_waiting=policy.max_waiting)
    if isinstance(policy, Reject):
        return Manner(waits=False)
    if isinstance(policy, Restart):
        return Manner(budget=PATIENCE + policy.grace, most_waiting=MOST_WAITING, supersedes="all", grace=policy.grace)
    if isinstance(policy, Join):
        return Manner(budget=PATIENCE, most_waiting=MOST_WAITING, joins=True)
    return Manner(budget=None, most_waiting=None, supersedes="waiting" if isinstance(policy, Latest) else "nobody")
