"""In which order a client is told that answers have ended: as they ended, the same for all who read along.

Each answer is followed by itself, so one that ended later may be heard of earlier. Before its end is told, it is looked
at which of the others have ended before, by the time in their records; those are told first. Two answers that end while
neither can see the other, side by side, may be told in either order: every frame names its answer.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, final

from standfast.errors import RequestNotFoundError
from standfast.flows.request import ENDED

if TYPE_CHECKING:
    from standfast.transports.chat.posting import Party

LOOKED_AT: Final = 32
"""How many answers are looked at, the oldest first: those that are about to end are among them."""

When: TypeAlias = tuple[int, str]
"""When an answer ended; of those that did at the same time, the id decides."""


@final
class Ends:
    """The answers of one client whose ends were not told yet.

    Args:
        party: Who reads, and where.
    """

    def __init__(self, party: Party) -> None:
        self._party: Final = party
        self._untold: Final[dict[str, asyncio.Event]] = {}
        self._known: Final[dict[str, When]] = {}
        self._has_met_all: Final = asyncio.Event()

    def meet(self, request: str) -> None:
        """Note that there is an answer."""
        self._untold[request] = asyncio.Event()

    def met_all(self) -> None:
        """Note that all answers are known that there were when the client came."""
        self._has_met_all.set()

    async def before(self, request: str) -> list[asyncio.Event]:
        """Return what has to happen before the end of an answer is told: all were met, and earlier ends told.

        Those wait for none that ended later.
        """
        if not self._has_met_all.is_set():
            return [self._has_met_all]
        own = await self._when(request)
        oldest = list(islice(self._untold.items(), LOOKED_AT))
        found = [(await self._when(other), is_told) for other, is_told in oldest]
        return [is_told for when, is_told in found if own is not None and when is not None and when < own]

    def told(self, request: str) -> None:
        """Note that the client was told, or that there is nothing to tell any more."""
        self._known.pop(request, None)
        if (is_told := self._untold.pop(request, None)) is not None:
            is_told.set()

    async def _when(self, request: str) -> When | None:
        """Return when an answer ended, if it has; it is looked up once."""
        if request not in self._known and request in self._untold:
            try:
                handle = await self._party.dispatching.find(self._party.principal, request)
                if handle.status in ENDED:
                    self._known[request] = ((await handle.info()).ended_at, request)
            except RequestNotFoundError:
                return None
        return self._known.get(request)
