"""Requests that have ended here and lie nowhere else: kept in mind for a while, as far as there is room."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, final

from standfast.clock import seconds_between
from standfast.flows.knowing import Brief
from standfast.flows.records import KEPT

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.flows.attending import Attended

REMEMBERED: Final = 10_000
"""How many requests that have ended here are kept in mind, besides those that lie in the store."""

ROOM: Final = 64_000_000
"""Bytes of results and events, as JSON, that are kept of all of them together."""

LIGHT: Final = 4_000
"""Bytes of a result up to which it is not weighed: so many of them have room."""


@final
class Remembering:
    """What is kept in mind. The oldest are forgotten first, among those that somebody has asked about, and the others.

    Nearly all are never asked about: they are put in order only if somebody asks about any.
    """

    def __init__(self) -> None:
        self._new: Final[deque[Brief]] = deque(maxlen=REMEMBERED)
        self._known: Final[OrderedDict[str, Attended | Brief]] = OrderedDict()
        self._weights: Final[dict[str, int]] = {}  # of those that are heavy
        self._weight = 0

    def add(self, attended: Attended) -> None:
        """Keep one in mind."""
        kept = attended.in_brief()
        if isinstance(kept, Brief) and len(kept.packed) <= LIGHT:
            self._new.append(kept)
            return
        weight = len(kept.packed) if isinstance(kept, Brief) else kept.weight
        self._put_in_order()
        if weight > LIGHT:
            self._weights[kept.id] = weight
            self._weight += weight
        self._put(kept)

    def get(self, request_id: str) -> Attended | Brief | None:
        """Return one that is kept in mind."""
        self._put_in_order()
        return self._known.get(request_id)

    def replace(self, attended: Attended) -> None:
        """Keep more of one in mind from now on: somebody has asked for it."""
        self._known[attended.id] = attended

    def forget(self, now: Instant) -> None:
        """Forget what has ended too long ago."""
        while self._known and _is_long_ago(next(iter(self._known.values())), now):
            self._drop()
        while self._new and _is_long_ago(self._new[0], now):
            self._new.popleft()

    def _put_in_order(self) -> None:
        while self._new:
            self._put(self._new.popleft())

    def _put(self, kept: Attended | Brief) -> None:
        self._known[kept.id] = kept
        while len(self._known) > REMEMBERED or self._weight > ROOM:
            self._drop()

    def _drop(self) -> None:
        request_id, _ = self._known.popitem(last=False)
        self._weight -= self._weights.pop(request_id, 0)


def _is_long_ago(kept: Attended | Brief, now: Instant) -> bool:
    return seconds_between(kept.ended_at, now) > KEPT
