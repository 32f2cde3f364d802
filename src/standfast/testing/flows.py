"""A request that is only played: nothing is stored or waited for, and everything can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.flows.deadlock import SIGNED
from standfast.flows.request import NOBODY, Call, EmittedEvent, Request
from standfast.flows.session import Session, apply, checked_value
from standfast.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.codec import JsonValue
    from standfast.flows.request import Address, Principal, Transport
    from standfast.flows.session import State
    from standfast.workflows.definition import Workflow

__all__ = ["Rehearsal", "StartedRun"]


class StartedRun(Struct, frozen=True):
    """A workflow that an action has started in a rehearsal. It has only been noted, and runs nowhere.

    Attributes:
        id: The id that was given, or one that was made up.
        workflow: The name of the workflow.
        args: What it was started with.
        kwargs: Also that, by name.
    """

    id: str
    workflow: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@final
class Rehearsal:
    """A request to call an action with in a test, and what the action did to it.

        rehearsal = Rehearsal(principal=sf.Principal(user="ada"), state={"messages": []})

        answer = await respond(rehearsal.request, "hello")

        assert rehearsal.events == [EmittedEvent(1, "message", "hello")]
        assert rehearsal.state_after() == {"messages": ["hello"]}

    Args:
        principal: Who asks.
        session: Which conversation it belongs to; empty for none.
        state: The state of that conversation.
        transport: What the request came by.
        metadata: What else the transport knows.
        idempotency_key: What the caller gave.
        attempt: 1, or more to play a request that is run again.
        inputs: The inputs of all requests that this one stands for.

    Attributes:
        request: What to call the action with.
        session: The state of the conversation, as the action sees it.
        events: What the action has told its followers.
        started: The workflows that it has started.
    """

    def __init__(
        self,
        *,
        principal: Principal = NOBODY,
        session: str = "session",
        state: Mapping[str, JsonValue] | None = None,
        transport: Transport = "local",
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
        attempt: int = 1,
        inputs: tuple[Mapping[str, Any], ...] = (),
    ) -> None:
        arrival = Call(
            flow="rehearsal",
            action="rehearsal",
            principal=principal,
            session=session,
            transport=transport,
            metadata=metadata or {},
            idempotency_key=idempotency_key,
        )
        self._state: Final[Mapping[str, JsonValue]] = state or {}
        self._results: Final[dict[str, Any]] = {}
        self.stopping = ""
        self.events: Final[list[EmittedEvent]] = []
        self.started: Final[list[StartedRun]] = []
        self.session: Final = Session(session, self._load)
        self.request: Final = Request(arrival, self, new_id(), attempt, inputs)

    def state_after(self) -> State:
        """Return the state of the conversation as it is if the action ends now, and well."""
        return apply(self._state, self.request.session.operations)

    def stop(self, reason: str = "stopped by the test") -> None:
        """Ask the request to stop: ``request.is_cancelled`` is true from now on, and ``request.check()`` raises."""
        self.stopping = reason

    async def _load(self) -> Mapping[str, JsonValue]:
        return self._state

    @property
    def module(self) -> str:
        """What the log records of the request are named after."""
        return __name__

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Note what the action tells."""
        self.events.append(EmittedEvent(len(self.events) + 1, name, checked_value("event", data)))

    def signed(self, address: Address) -> Address:
        """Sign a key, for no caller."""
        return (SIGNED, "", *address)

    async def start(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str | None,  # noqa: A002 -- the word that users know
    ) -> Any:  # noqa: ANN401 -- stands for a run
        """Note what the action starts."""
        workflow.signature.pack(args, kwargs)  # which refuses what could not be started
        self.started.append(StartedRun(id or new_id(), workflow.name, args, kwargs))
        return self.started[-1]

    async def run_once(
        self, key: str, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a function the first time."""
        if key not in self._results:
            self._results[key] = await function(*args, **kwargs)
        return self._results[key]
