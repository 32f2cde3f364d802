"""Hooks: what they hear of, and how they are kept from disturbing the work. :mod:`standfast.events` has the events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeAlias, cast, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, Instant, monotonic
from standfast.exits import EXITS, FAILURES, failure_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

# --- the root of all events ----------------------------------------------------------------------------------------

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Event(Struct, frozen=True, kw_only=True):
    """The root of all events. ``at`` is when it happened, by the clock of the process that reports it."""

    level: ClassVar[Level] = "info"
    frequent: ClassVar[bool] = False
    """Whether it is so frequent that only hooks that ask for it get it; see :class:`Hook`."""

    at: Instant


# --- hooks, and what is told about them ----------------------------------------------------------------------------

SLOW_HOOK: Final = 0.1
"""A hook that takes longer than this many seconds is reported."""


class HookFailed(Event, frozen=True, kw_only=True):
    """A hook raised. The other hooks are told once; what the hook was told about went on undisturbed."""

    level: ClassVar[Level] = "error"

    hook: str
    error: str
    """The type of the exception; its message may hold anything and is left out."""
    place: str
    """Where it was raised: file and line."""


class HookSlow(Event, frozen=True, kw_only=True):
    """A hook took so long that it holds up the work it watches. Let it hand its work to a thread or a queue."""

    level: ClassVar[Level] = "warning"

    hook: str
    seconds: float


class Hook(Protocol):
    """Anything that can be called with an event.

    It is called at once, on the thread where the event happens, possibly on several threads at a time, and must
    return quickly. What it returns is ignored, and so is what it raises, but for one line in the log.

    It hears of all events but those that are :attr:`~Event.frequent`, such as of every commit. A hook that wants these,
    or not all of the others, has a method ``wants(kind: type[Event]) -> bool``. Each hook is asked once for each kind,
    and an event that no hook wants is not even made. A hook of an engine that has methods ``attach(engine)`` and
    ``detach(engine)`` is handed the engine when it is open, and told before it closes.
    """

    def __call__(self, event: Event, /) -> object:
        """Take note of ``event``."""
        ...


_LOUD: Final = frozenset({"warning", "error"})
_Listener: TypeAlias = tuple[Callable[[Any], object], Hook, bool]


def _listener(hook: Hook, kind: type[Event]) -> _Listener:
    """Return what to call with events of a kind, whose hook that is, and whether its time is taken.

    Metrics hand out a function for each kind, which does no more than to count: looking at the clock would take longer.
    """
    find: Callable[[type[Event]], Callable[[Any], object]] | None = getattr(hook, "counter_of", None)
    return (hook, hook, True) if find is None else (find(kind), hook, False)


class Attached(Protocol):
    """A hook that looks at an engine besides, while it is open; metrics do."""

    def attach(self, engine: Any, /) -> None:  # noqa: ANN401 -- an engine, of which nothing is known here
        """Look at an engine that has opened."""
        ...

    def detach(self, engine: Any, /) -> None:  # noqa: ANN401 -- an engine, of which nothing is known here
        """Look at it no longer: it closes. It may not have opened."""
        ...


@final
class EngineHooks:
    """The hooks of an engine: its own, those that were added, and those that it was opened with.

    Attributes:
        opened_with: Those that it was opened with.
    """

    def __init__(self, own: Iterable[Hook]) -> None:
        self._own: Final = tuple(own)
        self._added: tuple[Hook, ...] = ()
        self.opened_with: tuple[Hook, ...] = ()

    def add(self, *hooks: Hook) -> None:
        """Tell some more hooks what happens, from when the engine is next opened."""
        self._added += hooks

    @property
    def more(self) -> tuple[Hook, ...]:
        """The hooks besides its own."""
        return (*self._added, *self.opened_with)

    def __iter__(self) -> Iterator[Hook]:
        yield from self._own
        yield from self.more

    def attach(self, engine: object) -> None:
        """Hand the engine, which is open, to the hooks that want it."""
        for each in self._attached():
            each.attach(engine)

    def detach(self, engine: object) -> None:
        """Tell these hooks that it closes."""
        for each in self._attached():
            each.detach(engine)

    def _attached(self) -> list[Attached]:
        return [cast("Attached", each) for each in self if hasattr(each, "attach") and hasattr(each, "detach")]


@final
class Hooks:
    """Tells hooks about events, and keeps their failures away from the work.

    ``if hooks:`` is False when there is no hook; then an event of ordinary work need not even be made. Warnings and
    errors are emitted in any case. Before a frequent event is made, ask ``if hooks.want(Committed):``.

    Args:
        hooks: What is called. One with a true ``is_quiet`` wants no events, and does not count for ``if hooks:``.
        log: What writes a log, if none of the hooks does. It does not count for ``if hooks:``.

    Attributes:
        tracing: The first of the hooks that traces runs, see :class:`~standfast.trace_context.RunTracing`.
    """

    __slots__ = ("_hooks", "_is_watched", "_listeners", "_log", "_reported", "tracing")

    def __init__(self, hooks: Iterable[Hook] = (), *, log: Hook | None = None) -> None:
        given = tuple(hooks)
        self._is_watched: Final = not all(getattr(each, "is_quiet", False) for each in given)
        self.tracing: Final = next((each for each in given if getattr(each, "traces_runs", False)), None)
        self._hooks: Final = given if log is None else (*given, log)
        self._log: Final = log
        self._listeners: Final[dict[type[Event], tuple[_Listener, ...]]] = {}
        self._reported: dict[tuple[str, int], object] = {}

    def __bool__(self) -> bool:
        return self._is_watched

    def want(self, kind: type[Event]) -> bool:
        """Return True if a hook wants events of this kind."""
        return self._is_watched and bool(self._listeners_of(kind))

    def tally_of(self, kind: type[Event]) -> Any:  # noqa: ANN401 -- a function or lists, as metrics have it for the kind
        """Return what takes the bare facts of events of a kind, if the one hook that wants them only counts them.

        Then no event is made, which would cost more than to count it; None: make it and :meth:`emit` it.
        """
        listeners = self._listeners_of(kind) if self._is_watched else ()
        find = getattr(listeners[0][1], "tally_of", None) if len(listeners) == 1 else None
        return None if find is None else find(kind)

    def _listeners_of(self, kind: type[Event]) -> tuple[_Listener, ...]:
        found = self._listeners.get(kind)
        if found is None:
            wanting = [hook for hook in self._hooks if self._is_wanted(hook, kind)]
            found = self._listeners[kind] = tuple(_listener(hook, kind) for hook in wanting)
        return found

    def _is_wanted(self, hook: Hook, kind: type[Event]) -> bool:
        if hook is self._log and kind.level not in _LOUD:
            return False  # it stands in where no hook was asked to write a log
        wants = getattr(hook, "wants", None)
        if wants is None:
            return not kind.frequent
        try:
            return bool(wants(kind))
        except FAILURES as raised:  # as if it had raised when it was told
            failure_of(raised)
            self._report_failure(hook, raised)
            return False

    def emit(self, event: Event) -> None:
        """Call every hook that wants ``event``, in order. Never raises what a hook raises."""
        for call, hook, is_timed in self._listeners.get(type(event)) or self._listeners_of(type(event)):
            started = monotonic() if is_timed else 0.0
            try:
                call(event)
            except BaseException as error:  # noqa: BLE001 -- whatever it is, the work goes on
                if isinstance(error, EXITS):
                    failure_of(error)  # raises it if a signal asks the process to end: that is no failure of the hook
                self._report_failure(hook, error)
            if is_timed and (taken := monotonic() - started) > SLOW_HOOK:
                self._report_slowness(hook, taken)

    def _report_failure(self, hook: Hook, error: BaseException) -> None:
        if not self._is_first("failed", hook):
            return
        name, kind, place = _name(hook), type(error).__name__, _place(error.__traceback__)
        _logger.error("event hook %s raised %s at %s; this is logged once", name, kind, place)
        self._tell_others(hook, HookFailed(at=SYSTEM_CLOCK.wall(), hook=name, error=kind, place=place))

    def _report_slowness(self, hook: Hook, seconds: float) -> None:
        if not self._is_first("slow", hook):
            return
        _logger.warning("event hook %s took %.1f s; this is logged once", _name(hook), seconds)
        self._tell_others(hook, HookSlow(at=SYSTEM_CLOCK.wall(), hook=_name(hook), seconds=seconds))

    def _is_first(self, problem: str, hook: Hook) -> bool:
        mark = object()  # setdefault is atomic, so of several threads one is the first
        return self._reported.setdefault((problem, id(hook)), mark) is mark

    def _tell_others(self, failing: Hook, event: Event) -> None:
        # Each hook is reported once, so hooks that fail at the news of each other's failure come to an end.
        others = Hooks(hook for hook in self._hooks if hook is not failing)
        others._reported = self._reported
        others.emit(event)


NO_HOOKS: Final = Hooks()
"""No hook is called."""

_logger: Final = logging.getLogger("standfast")


def _name(hook: Hook) -> str:
    named: object = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}"


def _place(traceback: TracebackType | None) -> str:
    if traceback is None:
        return "?"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
