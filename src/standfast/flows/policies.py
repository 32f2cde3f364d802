"""Policies: what happens to a request whose key is taken. Each is a value, checked when it is made.

    sf.Flow("support-chat", concurrency="queue")
    @chat.action(concurrency=sf.Debounce("500ms", max_wait="5s"))
    @chat.action(concurrency=sf.Reject(key="user"))

The key says which requests collide, and is part of the policy: ``"session"`` (the default), ``"user"``, ``"tenant"``,
``"none"``, or a function that takes the :class:`~standfast.flows.arrival.Arrival` and returns text, or None where
nothing is to be arbitrated. A request without a key (no session, no user, None) runs at once, as with ``Allow``.

``Queue`` and ``Reject`` look at all requests of a key. The others look at those of the same action, and wait their turn
behind another action of the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, final, get_args

from standfast.durations import seconds
from standfast.errors import InvalidFlowError
from standfast.flows.options import checked_choice, checked_count, checked_key, checked_shared_key, length
from standfast.flows.values import PolicyValue

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.flows.options import Key

Edge: TypeAlias = Literal["trailing", "leading"]
Collapse: TypeAlias = Literal["last", "all"]

MOST_WAITING: Final = 10_000
"""How many requests may wait for one key at most."""
LARGEST_BATCH: Final = 10_000


@final
class Allow(PolicyValue):
    """Requests run side by side, and nothing is arbitrated. That is so if nothing else was declared."""

    __slots__ = ()
    name = "allow"
    key: Final = "none"


@final
class Queue(PolicyValue):
    """One at a time, in the order of arrival: a request waits until those of its key before it have ended.

    Args:
        key: Which requests collide.
        max_waiting: How many may wait for one key. The next is refused with
            :class:`~standfast.errors.QueueFullError` (429), which says when to try again.
        timeout: How long one waits for its turn. After that it has left the line, never ran, and ends with
            :class:`~standfast.errors.QueueTimeoutError` (503). None: as long as it takes.
    """

    __slots__ = ("key", "max_waiting", "timeout")
    name = "queue"

    def __init__(self, *, key: Key = "session", max_waiting: int = 100, timeout: Duration | None = "30s") -> None:
        self.key: Final = checked_key("Queue", key)
        self.max_waiting: Final = checked_count("Queue", "max_waiting", max_waiting, MOST_WAITING)
        self.timeout: Final = None if timeout is None else length("Queue", "timeout", timeout)


@final
class Reject(PolicyValue):
    """One at a time, and nobody waits: while a request has the key, others are refused.

    They get :class:`~standfast.errors.RequestRejectedError` (409) with the id of the one that runs, which can be
    followed instead. Nothing of them is kept.

    Args:
        key: Which requests collide.
    """

    __slots__ = ("key",)
    name = "reject"

    def __init__(self, *, key: Key = "session") -> None:
        self.key: Final = checked_key("Reject", key)


@final
class Debounce(PolicyValue):
    """One run for a burst of requests, when it has been quiet for a while. A run that has begun is never cancelled.

    Each request of the burst takes the place of the one before, and all of them get the result of the one run. What
    arrives while it runs begins the next burst. A request is durable when it is answered, and the last one of a burst
    is never lost.

    If the transport says when each event happened, as ``"event_time"`` in the metadata of its arrival, the last one is
    the newest; and one that comes when a newer one was run already ends superseded, unless all are to be seen.

    Args:
        window: How long it has to be quiet.
        max_wait: How long the first request of a burst waits at most, however many follow.
        key: Which requests collide.
        edge: ``"trailing"``: one run after the burst. ``"leading"``: the first request runs at once, and those that
            follow it within the window become one more run after it.
        collapse: Which inputs the action sees in ``request.inputs``: only the ``"last"`` ones, or ``"all"`` of the
            burst, the oldest first. It is called with the last ones in both cases.
    """

    __slots__ = ("collapse", "edge", "key", "max_wait", "window")
    name = "debounce"
    collects = True

    def __init__(
        self,
        window: Duration,
        *,
        max_wait: Duration | None = None,
        key: Key = "session",
        edge: Edge = "trailing",
        collapse: Collapse = "last",
    ) -> None:
        self.window: Final = length("Debounce", "window", window)
        self.max_wait: Final = None if max_wait is None else length("Debounce", "max_wait", max_wait)
        if self.max_wait is not None and self.max_wait < self.window:
            raise InvalidFlowError("Debounce", "max_wait is shorter than window; it must be at least as long")
        self.key: Final = checked_shared_key("Debounce", key, "no burst to wait for")
        self.edge: Final = checked_choice("Debounce", "edge", edge, Edge)
        self.collapse: Final = checked_choice("Debounce", "collapse", collapse, Collapse)


@final
class Restart(PolicyValue):
    """The newest request of an action wins: the one that runs is cancelled, and the newest starts when it has ended.

    The cancelled one has ``grace`` to end. After that its grant is revoked: whatever it still does, it commits nothing
    to the session and its result is not kept. Its staged state is dropped in any case. The newest finds the inputs of
    those it superseded in ``request.inputs``, and they end with :class:`~standfast.errors.RequestSupersededError`. What
    was handed over to one that is superseded in turn is handed on: of the last hundred, nothing is lost.

    Args:
        key: Which requests collide.
        grace: How long a cancelled request has to end.
    """

    __slots__ = ("grace", "key")
    name = "restart"

    def __init__(self, *, key: Key = "session", grace: Duration = "5s") -> None:
        self.key: Final = checked_shared_key("Restart", key, "nothing to restart")
        self.grace: Final = seconds(grace, what="the grace of Restart")


@final
class Batch(PolicyValue):
    """One run for many requests: when there are enough of them, or the first has waited long enough.

    The action takes one list besides the request. Each request brings one item of it, is durable when it is answered,
    and is in exactly one run; all requests of a run get its result.

        @documents.action(concurrency=sf.Batch(100, "30s", key="tenant"))
        async def index(request: sf.Request, documents: list[Document]) -> int: ...

    Args:
        size: With how many items it is run at once.
        window: After how long it is run with fewer.
        key: Requests with different keys are never in one run.
    """

    __slots__ = ("key", "size", "window")
    name = "batch"
    collects = True

    def __init__(self, size: int, window: Duration, *, key: Key = "session") -> None:
        self.size: Final = checked_count("Batch", "size", size, LARGEST_BATCH)
        self.window: Final = length("Batch", "window", window)
        self.key: Final = checked_shared_key("Batch", key, "nothing to put together")


@final
class Join(PolicyValue):
    """Requests that arrive while the same action runs for their key share that run and its result.

    Their own inputs are not used. Behind another action of the same key, the first of them waits its turn as in a
    queue, and the others share its run.

    Args:
        key: Which requests collide.
    """

    __slots__ = ("key",)
    name = "join"

    def __init__(self, *, key: Key = "session") -> None:
        self.key: Final = checked_shared_key("Join", key, "no run to share")


@final
class Latest(PolicyValue):
    """The one that runs is finished, and of those of the same action that wait only the newest is kept.

    The others end with :class:`~standfast.errors.RequestSupersededError`, which names the newer one; it finds their
    inputs in ``request.inputs``, of the last hundred. A request is durable when it is answered.

    Args:
        key: Which requests collide.
    """

    __slots__ = ("key",)
    name = "latest"
    collects = True

    def __init__(self, *, key: Key = "session") -> None:
        self.key: Final = checked_shared_key("Latest", key, "nothing newer")


Policy: TypeAlias = Allow | Queue | Reject | Debounce | Restart | Batch | Join | Latest
"""What happens to a request whose key is taken. ``name`` is its name, and ``key`` says which requests collide.

``collects`` is true of those that answer before anything has run: their requests are always durable.
"""

POLICIES: Final[dict[str, type[Policy]]] = {kind.name: kind for kind in get_args(Policy)}
_PLAIN: Final = {kind.name: kind for kind in (Allow, Queue, Reject, Restart, Join, Latest)}

PolicyName: TypeAlias = Literal["allow", "queue", "reject", "restart", "join", "latest"]
"""The policies that need no options, by name."""


def as_policy(given: Policy | PolicyName, where: str) -> Policy:
    """Return what was declared as a policy: one of them, or the name of one that needs no options.

    Args:
        given: What was declared.
        where: The place, as an error names it: ``"flow 'support-chat', action 'respond'"``.

    Raises:
        InvalidFlowError: It is none. The error lists those that there are.
    """
    if isinstance(given, get_args(Policy)):
        return cast("Policy", given)
    if isinstance(given, str) and given in _PLAIN:
        return _PLAIN[given]()
    raise InvalidFlowError(where, _not_a_policy(given))


def _not_a_policy(given: object) -> str:
    if isinstance(given, str) and given in POLICIES:
        example = "sf.Debounce('500ms')" if given == "debounce" else "sf.Batch(100, '30s')"
        return f"the policy {given!r} needs options, for instance {example}"
    if isinstance(given, type) and given in POLICIES.values():
        return f"the policy {given.__name__} was given as a class; call it, as in sf.{given.__name__}(...)"
    return f"{given!r:.60} is no policy; there are {', '.join(map(repr, POLICIES))}, as sf.Queue(...) and so on"
