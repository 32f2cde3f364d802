"""Policies: what happens to a request whose key is taken. Each is a value, checked when it is made.

    sf.Flow("support-chat", concurrency="queue")
    @chat.action(concurrency=sf.Debounce("500ms", max_wait="5s"))
    @chat.action(concurrency=sf.Reject(key="user"))

The key says which requests collide, and is part of the policy: ``"session"`` (the default), ``"user"``, ``"tenant"``,
``"none"``, or a function that takes the :class:`~standfast.Call` and returns text, or None where
nothing is to be arbitrated. A request without a key (no session, no user, None) runs at once, as with ``Allow``.

``Queue`` and ``Reject`` look at all requests of a key. The others look at those of the same action, and wait their turn
behind another action of the key.
"""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, TypeVar, cast, final, get_args

from standfast.durations import seconds
from standfast.errors import DeclarationError, InvalidArgumentError
from standfast.locks.rate_limiter import check_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.durations import Duration


# --- what policies have in common: forms of keys, and the checks of their options ----------------------------------

T = TypeVar("T")

KeyForm: TypeAlias = Literal["session", "user", "tenant", "none"]
KeyFunction: TypeAlias = "Callable[[Any], str | None]"
Key: TypeAlias = "KeyForm | KeyFunction"
"""What requests have to have in common to collide."""

KEY_FORMS: Final = ("session", "user", "tenant", "none")
_SHORTEST: Final = 0.001


def length(policy: str, what: str, given: Duration) -> float:
    """Return a length of time in seconds; refuse none at all."""
    return seconds(given, what=f"the {what} of {policy}", minimum=_SHORTEST)


def checked_count(policy: str, what: str, given: int, most: int) -> int:
    """Return a whole number in its limits."""
    if type(given) is not int or not 1 <= given <= most:
        raise DeclarationError(policy, f"{what} is {given!r:.60}; it must be a whole number from 1 to {most:,}")
    return given


def checked_choice(policy: str, what: str, given: T, choices: object) -> T:
    """Return one of the texts that a literal type lists."""
    if given not in (known := get_args(choices)):
        raise DeclarationError(policy, f"{what} is {given!r:.60}; it must be {' or '.join(map(repr, known))}")
    return given


def checked_key(policy: str, key: Key) -> Key:
    """Return a key: one of its forms, or a plain function of one argument."""
    if key in KEY_FORMS:
        return key
    if not callable(key):
        forms = ", ".join(map(repr, KEY_FORMS))
        raise DeclarationError(policy, f"the key {key!r:.60} is none; there are {forms}, or a function of the call")
    if inspect.iscoroutinefunction(key):
        raise DeclarationError(policy, "the key function is async; it must be a plain function, which does no I/O")
    try:
        inspect.signature(key).bind(None)
    except (TypeError, ValueError):  # ValueError: a builtin that does not say what it takes
        raise DeclarationError(policy, "the key function must take one argument, the call") from None
    return key


def checked_shared_key(policy: str, key: Key, problem: str) -> Key:
    """Return the key of a policy that means nothing without one."""
    if key == "none":
        raise DeclarationError(policy, f"without a key there is {problem}; use sf.Allow(), or another key")
    return checked_key(policy, key)


# --- values that are declared: they do not change, are equal if their options are, and show them -------------------


class Value:
    """What declared values have in common. A subclass lists its options as slots, and is final."""

    __slots__ = ()

    def options(self) -> dict[str, object]:
        """Return the options by name."""
        slots: tuple[str, ...] = self.__slots__
        return {slot: getattr(self, slot) for slot in slots}

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{type(self).__name__} does not change; make another one")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and type(self) is type(other) and self.options() == other.options()

    def __hash__(self) -> int:
        return hash((type(self), *self.options().values()))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        return f"{type(self).__name__}({options})"


class PolicyValue(Value):
    """A policy: its name, and whether it answers before anything has run."""

    __slots__ = ()
    name: ClassVar[str]
    answers_first: ClassVar[bool] = False


# --- limits: how many run at a time, and how many come in a while --------------------------------------------------
#
# @sf.workflow(concurrency=sf.Limit(2, key=lambda order: order["customer"]))
# @chat.action(limits=[sf.Limit(20), sf.Limit(2, key="user"), sf.Rate(60, "1 minute", key="user")])

OnLimit: TypeAlias = Literal["reject", "queue", "cancel_running", "join"]
"""What happens to a start or a request beyond a limit."""

LimitKey: TypeAlias = "KeyForm | Callable[..., str | None]"
"""What a limit counts by: see :class:`Limit`."""

DEFAULT: Final = "default"
MOST_PERMITS: Final = 1_000_000
"""The most unfinished runs or running requests that a limit admits."""

MOST_QUEUED: Final = 10_000
LARGEST_RATE: Final = 1_000_000

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)


@final
class Limit(Value):
    """At most ``max`` at a time: unfinished runs of a workflow, or running requests of an action.

    It counts over all workers of a store; with ``arbiter="local"``, the requests of the one server.

    Args:
        max: How many, up to 1,000,000. One start and one end cost the same however many there are.
        key: What they are counted by; None: all together. For a workflow: a function of its arguments that returns
            text. For an action: ``"tenant"``, ``"user"``, ``"session"``, or a function of the :class:`~standfast.Call`,
            all of them within a tenant. Callers without a name, and requests without a session, count as one. A
            function of a call that returns None exempts the request.
        on_limit: What happens to one more. ``"reject"``, the default of a workflow: the start raises
            :class:`~standfast.errors.WorkflowConcurrencyLimitExceededError`; a request is refused with
            :class:`~standfast.errors.TooManyRequestsError` (429), not with policies under which it may have waited
            before. ``"queue"``, the default of an action: it waits. Workflows only: ``"cancel_running"`` cancels the
            oldest unfinished run and takes its place, ``"join"`` returns the handle of the unfinished run.
        max_queued: With ``"queue"``: how many may wait before the next is rejected. None: no bound of its own.
        ttl: With ``"queue"``: how long one waits; then a run is cancelled, and a request whose caller waits ends with
            :class:`~standfast.errors.QueueTimeoutError` (503). None: as long as it takes. By default a run waits as
            long as it takes, and a request 30 seconds. A durable request waits as long as its policy lets it, see
            ``sf.Queue(timeout=...)``.
        name: Limits of one name count together, over all actions of the app that declare them; they must be alike.
            Not for workflows.

    Raises:
        DeclarationError: An option has a value that it cannot have.
    """

    __slots__ = ("key", "max", "max_queued", "name", "on_limit", "ttl")

    def __init__(
        self,
        max: int,  # noqa: A002 -- the word that users know
        *,
        key: LimitKey | None = None,
        on_limit: OnLimit | None = None,
        max_queued: int | None = None,
        ttl: Duration | None = DEFAULT,
        name: str = "",
    ) -> None:
        self.max: Final = checked_count("Limit", "max", max, MOST_PERMITS)
        if key is not None and key not in KEY_FORMS and not callable(key):
            raise DeclarationError("Limit", f"the key {key!r:.60} is none; {_KEYS_OF_LIMITS}")
        self.key: Final = key
        self.on_limit: Final[OnLimit | None] = (
            None if on_limit is None else checked_choice("Limit", "on_limit", on_limit, OnLimit)
        )
        most = None if max_queued is None else checked_count("Limit", "max_queued", max_queued, MOST_QUEUED)
        self.max_queued: Final = most
        self.ttl: Final = ttl if ttl is None or ttl == DEFAULT else length("Limit", "ttl", ttl)
        self.name: Final = _checked_name("Limit", name)


_KEYS_OF_LIMITS: Final = (
    "give a function of the workflow's arguments; for an action 'tenant', 'user', 'session' or a function of the call"
)


@final
class Rate(Value):
    """A number of requests of an action in a while: in all, or for each value of a key. What is more is refused.

    It is refused with :class:`~standfast.errors.TooManyRequestsError` (429), which says when to come again, before
    anything is written. It is the token bucket of :class:`~standfast.locks.rate_limiter.RateLimiter`: ``burst``
    requests at once after a quiet time, and one more every ``per / max``. Whatever is let through has counted, also if
    the policy refuses it then. A request that is answered by its idempotency key does not count, nor does a tick of a
    schedule.

    Args:
        max: How many.
        per: In how long: ``sf.Rate(60, "1 minute")``.
        key: What they are counted by, see :class:`Limit`.
        burst: How many at once after a quiet time; by default ``max``.
        name: Rates of one name count together, whichever actions of the app they belong to. They must be alike.

    Raises:
        DeclarationError: It cannot be meant; the error says why.
    """

    __slots__ = ("burst", "key", "max", "name", "per")

    def __init__(
        self,
        max: int,  # noqa: A002 -- the word that users know
        per: Duration,
        *,
        key: Key = "none",
        burst: int | None = None,
        name: str = "",
    ) -> None:
        self.max: Final = checked_count("Rate", "max", max, LARGEST_RATE)
        self.per: Final = length("Rate", "per", per)
        self.key: Final = checked_key("Rate", key)
        self.burst: Final = self.max if burst is None else checked_count("Rate", "burst", burst, LARGEST_RATE)
        self.name: Final = _checked_name("Rate", name)
        try:
            check_rate(self.burst, self.interval)
        except InvalidArgumentError as error:
            raise DeclarationError("Rate", str(error)) from None

    @property
    def interval(self) -> timedelta:
        """The time in which one more may come."""
        return timedelta(seconds=self.per / self.max)


def _checked_name(where: str, name: str) -> str:
    if not isinstance(name, str) or (name and not _NAME.fullmatch(name)):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = "a name must be 1 to 64 letters, digits, _ . or -, and begin with a letter"
        raise DeclarationError(where, f"name is {name!a:.80}; {problem}")
    return name


# --- policies: what happens to a request whose key is taken. Each is a value, checked when it is made --------------

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
            :class:`~standfast.errors.QueueTimeoutError` (503). None: as long as it takes. By default one whose caller
            waits has 30 seconds, and one that was acknowledged before it ran waits as long as it takes.
    """

    __slots__ = ("key", "max_waiting", "timeout")
    name = "queue"

    def __init__(self, *, key: Key = "session", max_waiting: int = 100, timeout: Duration | None = DEFAULT) -> None:
        self.key: Final = checked_key("Queue", key)
        self.max_waiting: Final = checked_count("Queue", "max_waiting", max_waiting, MOST_WAITING)
        self.timeout: Final = timeout if timeout is None or timeout == DEFAULT else length("Queue", "timeout", timeout)


@final
class Reject(PolicyValue):
    """One at a time, and none waits: while a request has the key, others are refused.

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
    answers_first = True

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
            raise DeclarationError("Debounce", "max_wait is shorter than window; it must be at least as long")
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
    answers_first = True

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
    answers_first = True

    def __init__(self, *, key: Key = "session") -> None:
        self.key: Final = checked_shared_key("Latest", key, "nothing newer")


Policy: TypeAlias = Allow | Queue | Reject | Debounce | Restart | Batch | Join | Latest
"""What happens to a request whose key is taken. ``name`` is its name, and ``key`` says which requests collide.

``answers_first`` is true of those that answer before anything has run: their requests are always durable.
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
        DeclarationError: It is none. The error lists those that there are.
    """
    if isinstance(given, get_args(Policy)):
        return cast("Policy", given)
    if isinstance(given, str) and given in _PLAIN:
        return _PLAIN[given]()
    raise DeclarationError(where, _not_a_policy(given))


def _not_a_policy(given: object) -> str:
    if isinstance(given, str) and given in POLICIES:
        example = "sf.Debounce('500ms')" if given == "debounce" else "sf.Batch(100, '30s')"
        return f"the policy {given!r} needs options, for instance {example}"
    if isinstance(given, type) and given in POLICIES.values():
        return f"the policy {given.__name__} was given as a class; call it, as in sf.{given.__name__}(...)"
    return f"{given!r:.60} is no policy; there are {', '.join(map(repr, POLICIES))}, as sf.Queue(...) and so on"
