"""What all connections to one chat share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.flows.ownership import Owners, checked_session, new_session
from standfast.transports.chat.guests import Guests
from standfast.transports.chat.posting import Party
from standfast.transports.gate import PRINCIPAL
from standfast.transports.visitors import who_asks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.requests import HTTPConnection

    from standfast.flows.arrival import Principal
    from standfast.scope import Scope
    from standfast.transports.chat.declaring import Chat
    from standfast.transports.limits import AppLimits
    from standfast.transports.places import Places, Who
    from standfast.transports.seam import Dispatching


@final
class Serving:
    """One chat of an application.

    Args:
        chat: What was declared.
        dispatching: Where requests go.
        space: Returns where conversations lie, while the application is open.
        limits: Of the application.
        places: Counts the open streams of the application.
        closing: Set when the application closes.
    """

    def __init__(
        self,
        chat: Chat,
        dispatching: Dispatching,
        space: Callable[[], Scope],
        limits: AppLimits,
        places: Places,
        closing: asyncio.Event,
    ) -> None:
        self.chat, self._dispatching, self._space = chat, dispatching, space
        self.limits, self.places, self.closing = limits, places, closing
        self.guests: Final = Guests(chat.limits)

    async def party(self, connection: HTTPConnection, session: str) -> Party:
        """Return who talks in which session; a new one if none is named.

        Raises:
            InvalidArrivalError: The id of the session cannot be one.
            ForbiddenError: It is somebody else's.
        """
        principal: Principal = connection.scope[PRINCIPAL]
        space = self._space()
        if session:
            await Owners(space).check(principal, checked_session(principal, session))
        return Party(self.chat, self._dispatching, space, principal, session or new_session())

    def who(self, connection: HTTPConnection) -> Who:
        """Return what is counted as one user."""
        return who_asks(connection.scope)
