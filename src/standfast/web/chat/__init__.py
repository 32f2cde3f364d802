"""Chats: what people write lands at once, answers come in order, and a lost connection loses nothing."""

from __future__ import annotations

import math
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import monotonic
from standfast.durations import seconds
from standfast.errors import DeclarationError, TooManyRequestsError
from standfast.flows.shares import SAID
from standfast.web.limits import OpenCounts, several, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from standfast.durations import Duration
    from standfast.flows.flow import Action, Flow, Flows
    from standfast.web.limits import Caller


# --- how an application says that a flow is a chat -----------------------------------------------------------------

TEXT: Final = "text"
"""The parameter of an action that gets what a user wrote."""


@final
class ChatLimits:
    """How much a chat takes from one user. More is refused with a typed error, and nothing of it is kept.

    Args:
        message: Bytes of one message, as UTF-8.
        rate: How many messages a second are taken in the long run.
        burst: How many may come at once.
        connections: How many connections are open at the same time, in one process.
        idle: After how long a connection is closed on which nothing is written or answered.
        heartbeat: After how long without a word a client is asked whether it is still there. One that says nothing
            three times as long is let go.
        patience: How long a client may take to read what it is sent. What waits for it meanwhile is bounded.
        keep: For how long a message can be told again to a user who comes back.
    """

    __slots__ = ("burst", "connections", "heartbeat", "idle", "keep", "message", "patience", "rate")

    def __init__(
        self,
        *,
        message: int = 16_384,
        rate: float = 5.0,
        burst: int = 20,
        connections: int = 10,
        idle: Duration = "15 minutes",
        heartbeat: Duration = "20s",
        patience: Duration = "30s",
        keep: Duration = "1 day",
    ) -> None:
        self.message: Final = whole_number("ChatLimits", "message", message, 100_000)
        self.burst: Final = whole_number("ChatLimits", "burst", burst, 10_000)
        self.connections: Final = whole_number("ChatLimits", "connections", connections, 10_000)
        if type(rate) not in (int, float) or not 0 < rate <= 10_000:  # noqa: PLR2004 -- as many as burst
            raise DeclarationError("ChatLimits", f"rate is {rate!r:.60}; it must be a number above 0, up to 10,000")
        self.rate: Final = float(rate)
        self.idle: Final = seconds(idle, what="idle", minimum=0.001)
        self.heartbeat: Final = seconds(heartbeat, what="heartbeat", minimum=0.001)
        self.patience: Final = seconds(patience, what="patience", minimum=0.001)
        self.keep: Final = seconds(keep, what="keep", minimum=1.0)


@final
class Chat:
    """A flow that people talk to: over a WebSocket, over HTTP, and on a page to try it.

        app = sf.App("sqlite:///chat.db", flows=[support], chats=[sf.web.Chat(support)])

    Each message goes to one action that keeps it, at once, and then to one that answers, by that one's policy. What the
    answering action tells with ``request.emit`` is sent on as it comes, and what it returns is the answer.

    Args:
        flow: The flow.
        append: The action that keeps a message; it takes ``text``. None: there is none, and a message is only answered.
        respond: The action that answers; it takes nothing, or ``text``.
        page: Serve a page at ``/chat/{flow}/`` where a person can try it.
        limits: How much it takes from one user.

    Raises:
        DeclarationError: The flow has no such action, or the action takes something else.
    """

    __slots__ = ("append", "flow", "limits", "page", "respond", "says_text")

    def __init__(
        self,
        flow: Flow,
        *,
        append: str | None = "append_message",
        respond: str = "respond",
        page: bool = True,
        limits: ChatLimits | None = None,
    ) -> None:
        self.flow: Final = flow.kind
        self.append: Final = None if append is None else _found(flow, append).name
        self.respond: Final = _found(flow, respond).name
        self.page: Final = page
        self.limits: Final = limits or ChatLimits()
        if append is not None and not _takes_text(flow.actions[append]):
            raise DeclarationError(flow.actions[append].where, f"a chat gives it {TEXT!r}, which it does not take")
        self.says_text: Final = _takes_text(flow.actions[respond])
        """Whether the answering action is given the message."""
        if append is None and not self.says_text:
            raise DeclarationError(flow.actions[respond].where, f"no action gets the message; let it take {TEXT!r}")

    def __repr__(self) -> str:
        return f"Chat({self.flow!r}, append={self.append!r}, respond={self.respond!r})"


def checked_chats(chats: Iterable[Chat], flows: Flows) -> tuple[Chat, ...]:
    """Return the chats of an application that serves these flows.

    Raises:
        DeclarationError: A flow is not served, or has two chats.
    """
    known = several("chats", chats, Chat, "sf.web.Chat(flow, ...)")
    served = {action.flow for action in flows.actions}
    for number, chat in enumerate(known):
        if chat.flow not in served:
            raise DeclarationError(repr(chat), "its flow is not among those that the app serves; add it to flows=")
        if chat.flow in {other.flow for other in known[:number]}:
            raise DeclarationError(repr(chat), "the flow has another chat already")
    return known


def _found(flow: Flow, name: str) -> Action[..., Any]:
    action = flow.actions.get(name)
    if action is None:
        known = ", ".join(map(repr, flow.actions)) or "none"
        raise DeclarationError(f"the chat of flow {flow.kind!r}", f"there is no action {name!r}; there is {known}")
    return action


def _takes_text(action: Action[..., Any]) -> bool:
    """Return True if an action takes text; refuse one that needs something else."""
    schema = action.input_schema()
    if needed := set(schema.get("required", ())) - {TEXT}:
        raise DeclarationError(action.where, f"a chat cannot give it {', '.join(map(repr, sorted(needed)))}")
    return TEXT in schema.get("properties", {})


# --- how much each user takes of a chat in this process: open connections, and messages a second -------------------

REMEMBERED: Final = 10_000
"""How many users are remembered that have no connection open; the ones that wrote last."""


@final
class Guests:
    """Counts what users do, and refuses what is too much.

    Args:
        limits: How much that is.
        now: Seconds by some clock.
    """

    def __init__(self, limits: ChatLimits, now: Callable[[], float] = monotonic) -> None:
        self._limits, self._now = limits, now
        self._open: Final = OpenCounts()
        self._written: Final[OrderedDict[Caller, tuple[float, float]]] = OrderedDict()

    @contextmanager
    def connected(self, who: Caller) -> Generator[None]:
        """Count a connection while it is open.

        Raises:
            TooManyRequestsError: The user has as many as there may be.
        """
        if self._open.of(who) >= self._limits.connections:
            raise TooManyRequestsError("connections of this user", self._limits.connections, SAID)
        with self._open.one_more(who):
            yield

    def write(self, who: Caller) -> None:
        """Count a message.

        Raises:
            TooManyRequestsError: They come too fast. It says when the next one is taken.
        """
        now, rate = self._now(), self._limits.rate
        level, at = self._written.pop(who, (0.0, now))
        level = max(0.0, level - (now - at) * rate)
        is_too_many = level + 1 > self._limits.burst
        self._written[who] = (level if is_too_many else level + 1, now)
        if len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        if is_too_many:
            wait = math.ceil(100 * (level + 1 - self._limits.burst) / rate) / 100
            raise TooManyRequestsError("messages of this user", self._limits.burst, wait)
