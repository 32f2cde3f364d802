"""A conversation: its messages in the store, the user who takes part, and what all connections to a chat share."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.errors import FlowError, IdempotencyInFlightError
from standfast.flows.request import Call
from standfast.flows.tenants import Owners, checked_session, new_session
from standfast.ids import new_id
from standfast.stores.protocol import Conflict, Put
from standfast.web.call import HandleLike
from standfast.web.chat import TEXT, Guests
from standfast.web.gate import PRINCIPAL, caller_in
from standfast.web.problems import problem_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.requests import HTTPConnection

    from standfast.flows.request import Principal
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Watch
    from standfast.web.call import Dispatching
    from standfast.web.chat import Chat
    from standfast.web.limits import AppLimits, Caller, UserShares


# --- the messages of a conversation, in order: every client sees the same, whatever process it is connected to -----
#
# The text of a message and the id of the request that answers it are kept here for a while. What that request emits is
# kept where the events of every request are.

PAGE: Final = 100
"""How many messages are read at once."""

TOLD_AGAIN: Final = 200
"""How many messages a user is told who comes without having read any."""


class ChatEntry(Struct, frozen=True, omit_defaults=True):
    """One message.

    Attributes:
        text: What the user wrote.
        message: Its id, made by its sender.
        request: The request that answers it; empty if that was refused.
        problem: Why it was, as a problem for callers.
    """

    text: str
    message: str
    request: str = ""
    problem: dict[str, Any] | None = None


class HeadRecord(Struct, frozen=True):
    """The number of the latest message."""

    last: int


class SentRecord(Struct, frozen=True):
    """The number under which a message lies that may be sent again."""

    number: int


ENTRIES: Final[Codec[ChatEntry]] = Codec(ChatEntry, what="a message of a chat")
HEADS: Final[Codec[HeadRecord]] = Codec(HeadRecord, what="the head of a chat")
SENT: Final[Codec[SentRecord]] = Codec(SentRecord, what="a message that was sent")


@final
class Conversation:
    """The messages of one session in one flow.

    Args:
        scope: Where.
        tenant: Whose.
        flow: The kind of the flow.
        session: The session.
        keep: Seconds for which a message lies here.
    """

    def __init__(self, scope: Scope, tenant: str, flow: str, session: str, keep: float) -> None:
        self._scope, self._keep = scope, keep
        self._place: Final = (tenant, flow, session)
        self._head: Final = scope.key("chat", *self._place)
        self._said: Final = scope.key("chat-said", *self._place)

    async def add(self, entry: ChatEntry) -> int:
        """Put a message at the end and return its number. One that lies here already, by its id, stays as it is."""
        sent = self._scope.key("chat-sent", *self._place, entry.message)
        while True:
            seen = await self._scope.read(self._head, sent)
            if entry.request and (found := seen.get(sent)) is not None:
                return SENT.decode(found.value).number
            head, gone = seen.get(self._head), later(seen.at, self._keep)
            # The first number follows from the time, so that none is ever used again.
            number = seen.at // 1_000 if head is None else HEADS.decode(head.value).last + 1
            changes = [
                Put(self._head, HEADS.encode_own(HeadRecord(number)), seen.version(self._head), expires_at=gone),
                Put(self._key(number), ENTRIES.encode_own(entry), expires_at=gone),
            ]
            if entry.request:  # one that was refused may be sent again, and is then another one
                changes.append(Put(sent, SENT.encode_own(SentRecord(number)), seen.version(sent), expires_at=gone))
            if not isinstance(await self._scope.commit(*changes), Conflict):
                return number

    def _key(self, number: int) -> RecordKey:
        return self._said.child(f"{number:015d}")

    def watch(self) -> Watch:
        """Subscribe to hints that there is a new message."""
        return self._scope.watch(self._said)

    async def beginning(self) -> int:
        """Return the number before the first message that is told to a user who has read none."""
        page = await self._scope.scan(*self._said.within(), limit=TOLD_AGAIN, reverse=True)
        return min((_number(key) for key in page.records), default=1) - 1

    async def after(self, number: int) -> AsyncIterator[tuple[int, ChatEntry]]:
        """Yield the messages after a number, oldest first."""
        start, (_, end) = self._key(number).successor(), self._said.within()
        while True:
            page = await self._scope.scan(start, end, limit=PAGE)
            for key, record in page.records.items():
                yield _number(key), ENTRIES.decode(record.value)
            if page.more is None:
                return
            start = page.more


def _number(key: RecordKey) -> int:
    return int(key.parts[-1])


# --- A message: kept by one action at once, then answered by another one in its turn -------------------------------


class Posted(Struct, frozen=True):
    """A message that was taken.

    Attributes:
        message: Its id.
        handle: The request that answers it.
    """

    message: str
    handle: HandleLike


@final
class Party:
    """A user in a conversation.

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
        """Refuse a user who is not the owner of the session.

        Raises:
            ForbiddenError: It has got another owner since it was checked, when it had none.
        """
        await self._owners.check(self.principal, self.session)

    async def post(self, text: str, message_id: str = "") -> Posted:
        """Take a message. It is kept when this returns, and answered in any case: also if this process dies.

        Sent again with the same id, it is the same message.

        Raises:
            FlowError: It was refused. If it was kept and only the answer was refused, the conversation says so.
        """
        message = message_id or new_id()
        if self.chat.append is not None:
            kept = await self._dispatch(self.chat.append, message_id, {TEXT: text}, attended=True)
            await kept.packed()
        try:
            inputs = {TEXT: text} if self.chat.says_text else {}
            handle = await self._dispatch(self.chat.respond, message_id, inputs, attended=False)
        except FlowError as problem:
            if self.chat.append is not None:
                await self.conversation.add(ChatEntry(text, message, problem=problem_of(problem)))
            raise
        await self.conversation.add(ChatEntry(text, message, handle.id))
        return Posted(message, handle)

    async def _dispatch(self, action: str, message_id: str, inputs: Mapping[str, Any], *, attended: bool) -> HandleLike:
        arrival = Call(
            flow=self.chat.flow,
            action=action,
            inputs=inputs,
            principal=self.principal,
            session=self.session,
            transport="chat",
            metadata={"chat": {"message": message_id}} if message_id else {},
            idempotency_key=_key(self.session, action, message_id),
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


# --- what all connections to one chat share ------------------------------------------------------------------------


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
        places: UserShares,
        closing: asyncio.Event,
    ) -> None:
        self.chat, self._dispatching, self._space = chat, dispatching, space
        self.limits, self.places, self.closing = limits, places, closing
        self.guests: Final = Guests(chat.limits)

    async def party(self, connection: HTTPConnection, session: str) -> Party:
        """Return who talks in which session; a new one if none is named.

        Raises:
            InvalidInputError: The id of the session cannot be one.
            ForbiddenError: It is another user's.
        """
        principal: Principal = connection.scope[PRINCIPAL]
        space = self._space()
        if session:
            await Owners(space).check(principal, checked_session(principal, session))
        return Party(self.chat, self._dispatching, space, principal, session or new_session())

    def who(self, connection: HTTPConnection) -> Caller:
        """Return what is counted as one user."""
        return caller_in(connection.scope)
