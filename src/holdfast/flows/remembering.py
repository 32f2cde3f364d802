"""Requests that have ended here and lie nowhere else: kept in mind for a while, as far as there is room."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from holdfast.clock import seconds_between
from holdfast.flows.records import KEPT

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.flows.attending import Attended

REMEMBERED: Final = 10_000
"""How many requests that have ended here are kept in mind, besides those that lie in the store."""

ROOM: Final = 64_000_000
"""Bytes of results and events, as JSON, that are kept of all of them together."""

LIGHT: Final = 4_000
"""Bytes of a result up to which it is kept as an object as well."""


@final
class Remembering:
    """What is kept in mind. The oldest are forgotten first."""

    def __init__(self) -> None:
        self._known: Final[OrderedDict[str, Attended]] = OrderedDict()
        self._weights: Final[dict[str, int]] = {}  # of those that are heavy
        self._weight = 0

    def add(self, attended: Attended) -> None:
        """Keep one in mind."""
        weight = attended.weight
        if weight > LIGHT or attended.problem is not None:
            attended = attended.in_brief()
            self._weights[attended.id] = weight
            self._weight += weight
        self._known[attended.id] = attended
        while len(self._known) > REMEMBERED or self._weight > ROOM:
            self._drop()

    def get(self, request_id: str) -> Attended | None:
        """Return one that is kept in mind."""
        return self._known.get(request_id)

    def forget(self, now: Instant) -> None:
        """Forget what has ended too long ago."""
        while self._known and seconds_between(next(iter(self._known.values())).ended_at, now) > KEPT:
            self._drop()

    def _drop(self) -> None:
        request_id, _ = self._known.popitem(last=False)
        self._weight -= self._weights.pop(request_id, 0)
