"""In which order a client is told that answers have ended: as they ended, the same for all who read along.

Each answer is followed by itself, so one that ended later may be heard of earlier. Before its end is told, it is looked
at which of the others have ended before, by the time in their records; those are told first. Two answers that end while
neither can see the other, side by side, may be told in either order: every frame names its answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, final

from holdfast.errors import RequestNotFoundError

if TYPE_CHECKING:
    from holdfast.transports.chat.posting import Party

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

    async def in_turn(self, request: str) -> None:
        """Wait until the ends of those were told that ended before this one. They wait for none that ended later."""
        await self._has_met_all.wait()
        own = await self._when(request)
        for other, is_told in list(self._untold.items()):
            if other == request or own is None:
                continue
            when = await self._when(other)
            if when is not None and when < own:
                await is_told.wait()

    def told(self, request: str) -> None:
        """Note that the client was told, or that there is nothing to tell any more."""
        self._known.pop(request, None)
        if (is_told := self._untold.pop(request, None)) is not None:
            is_told.set()

    async def _when(self, request: str) -> When | None:
        """Return when an answer ended, if it has; it is looked up once."""
        if request not in self._known and request in self._untold:
            try:
                info = await (await self._party.dispatching.find(self._party.principal, request)).info()
            except RequestNotFoundError:
                return None
            if info.has_ended:
                self._known[request] = (info.ended_at, request)
        return self._known.get(request)
