"""The order of events by their own times: an older one that comes late does not replace a newer one.

Within a burst they are put in that order. One that comes after its burst has run begins another
one: if all of that is older than what was run, running it would bring back an old state. So the time of the newest
event is kept with the outcome of its run. That is so where only the last event of a burst counts; an action that is to
see all of them sees the late ones, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.flows.policies import Debounce
from standfast.flows.records import KEPT
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.flows.action import Action
    from standfast.flows.call import Call
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot


class NewestRecord(Struct, frozen=True):
    """The newest event of a key: when it happened, in seconds, and the request that was run with it."""

    at: float
    request: str


NEWEST: Final[Codec[NewestRecord]] = Codec(NewestRecord, what="the newest event of a key")


def in_order(calls: Sequence[Call]) -> list[Call]:
    """Return calls in the order of their own times: one that was late does not count as newer than it is.

    One whose own time is not known is as new as the newest before it; so without any they stay in order of arrival.
    """
    newest, times = float("-inf"), list[float]()
    for call in calls:
        times.append(newest if call.at is None else call.at)
        newest = max(newest, times[-1])
    return [calls[place] for place in sorted(range(len(calls)), key=times.__getitem__)]


def newest_key(scope: Scope, action: Action[..., Any], call: Call) -> RecordKey | None:
    """Return where the newest event is kept that an action was run with; None: its order does not count."""
    policy = action.policy
    if call.at is None or not isinstance(policy, Debounce) or policy.collapse != "last":
        return None
    return scope.key("newest", call.tenant, call.flow, call.action, msgspec.json.encode(call.address).decode())


async def run_with_newer(scope: Scope, key: RecordKey, at: float | None) -> str:
    """Return the request that was run with a newer event; empty: there was none."""
    record = (await scope.read(key)).get(key)
    newest = None if record is None else NEWEST.decode(record.value)
    return "" if newest is None or at is None or newest.at <= at else newest.request


def newest_put(key: RecordKey, at: float | None, request_id: str, seen: Snapshot) -> Put:
    """Return the change that keeps the time of an event which an action was run with, for as long as requests are."""
    record = NEWEST.encode_own(NewestRecord(at or 0.0, request_id))
    return Put(key, record, seen.version(key), expires_at=later(seen.at, KEPT))
