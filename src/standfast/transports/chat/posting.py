"""A message: kept by one action at once, then answered by another one in its turn."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.errors import FlowError, IdempotencyInFlightError
from standfast.flows.arrival import Arrival
from standfast.flows.ownership import Owners
from standfast.ids import new_id
from standfast.transports.chat.conversation import Conversation, Entry
from standfast.transports.chat.declaring import TEXT
from standfast.transports.problems import problem_of
from standfast.transports.seam import Handle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from standfast.flows.arrival import Principal
    from standfast.scope import Scope
    from standfast.transports.chat.declaring import Chat
    from standfast.transports.chat.frames import Say
    from standfast.transports.seam import Dispatching


class Posted(Struct, frozen=True):
    """A message that was taken.

    Attributes:
        message: Its id.
        handle: The request that answers it.
    """

    message: str
    handle: Handle


@final
class Party:
    """Somebody in a conversation.

    Args:
        chat: What was declared.
        dispatching: Where requests go.
        scope: Where the conversation lies.
        principal: Who it is.
        session: The session; it was checked that it is theirs.
    """

    def __init__(self, chat: Chat, dispatching: Dispatching, scope: Scope, principal: Principal, session: str) -> None:
        self.chat, self.dispatching, self.principal, self.session = chat, dispatching, principal, session
        self._owners: Final = Owners(scope)
        self.conversation: Final = Conversation(scope, principal.tenant, chat.flow, session, chat.limits.keep)

    async def check(self) -> None:
        """Refuse somebody who is not the owner of the session.

        Raises:
            ForbiddenError: It has got another owner since it was checked, when nobody had it.
        """
        await self._owners.check(self.principal, self.session)

    async def post(self, said: Say) -> Posted:
        """Take a message. It is kept when this returns, and answered in any case: also if this process dies.

        Sent again with the same id, it is the same message.

        Raises:
            FlowError: It was refused. If it was kept and only the answer was refused, the conversation says so.
        """
        message = said.id or new_id()
        if self.chat.append is not None:
            kept = await self._dispatch(self.chat.append, said, {TEXT: said.text}, attended=True)
            await kept.packed()
        try:
            inputs = {TEXT: said.text} if self.chat.says_text else {}
            handle = await self._dispatch(self.chat.respond, said, inputs, attended=False)
        except FlowError as problem:
            if self.chat.append is not None:
                await self.conversation.add(Entry(said.text, message, problem=problem_of(problem)))
            raise
        await self.conversation.add(Entry(said.text, message, handle.id))
        return Posted(message, handle)

    async def _dispatch(self, action: str, said: Say, inputs: Mapping[str, Any], *, attended: bool) -> Handle:
        arrival = Arrival(
            flow=self.chat.flow,
            action=action,
            inputs=inputs,
            principal=self.principal,
            session=self.session,
            transport="chat",
            metadata={"chat": {"message": said.id}} if said.id else {},
            idempotency_key=_key(self.session, action, said.id),
            attended=attended,
            on_disconnect="continue",
        )
        try:
            return await self.dispatching.dispatch(arrival)
        except IdempotencyInFlightError as same:
            return await self.dispatching.find(self.principal, same.request_id)

    async def cancel(self, request_id: str) -> None:
        """Stop an answer of this conversation.

        Raises:
            RequestNotFoundError: There is none with that id.
        """
        handle = await self.dispatching.find(self.principal, request_id)
        if (await handle.info()).session == self.session:
            await handle.cancel("the reader does not want it any more")


def _key(session: str, action: str, message: str) -> str:
    """Return an idempotency key that fits, whatever the ids look like; none for a message without an id."""
    if not message:
        return ""
    parts = f"{session}\x00{message}".encode()
    return f"chat:{action}:{sha256(parts).hexdigest()}"
