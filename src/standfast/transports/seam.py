"""What transports need of a dispatcher, and nothing more: they translate, it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from standfast.flows.action import Action
    from standfast.flows.arrival import Arrival, Principal
    from standfast.flows.request import Event, Explanation, RequestInfo


class Handle(Protocol):
    """A request that was taken on."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def is_new(self) -> bool:
        """False if it was sent before, or shares the run of another one."""
        ...

    @property
    def is_replay(self) -> bool:
        """True if its idempotency key was seen before, so that it stands for that request."""
        ...

    @property
    def runs_here(self) -> bool:
        """True if this process runs it: it ends, and says so, before the process does."""
        ...

    @property
    def is_taken_on(self) -> bool:
        """False while it is not certain that it is: it is run when its result is asked for, or was refused then."""
        ...

    @property
    def status(self) -> str:
        """Where it stood when it was taken on."""
        ...

    @property
    def position(self) -> int | None:
        """Its place in the line then."""
        ...

    @property
    def explanation(self) -> Explanation | None:
        """Why it waits, if it does."""
        ...

    async def packed(self, timeout: float | None = None) -> bytes:
        """Wait for what the action returns, as JSON, or raise what tells why there is nothing."""
        ...

    async def info(self) -> RequestInfo:
        """Return where it stands now."""
        ...

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield its events after a number, and then those to come, until it has ended."""
        ...

    def abandon(self, reason: str) -> None:
        """Stop it because its caller has gone away; that is tried until it is known, and nobody waits for it."""
        ...

    async def cancel(self, reason: str, cancelled_by: str = "") -> None:
        """Stop it, wherever it is; the record says who asked for it, by default the user who has this handle."""
        ...


class Simple(Protocol):
    """A request that whoever asks runs itself. It may turn out on the way that it is refused."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def packed(self) -> bytes | None:
        """What it returned, as JSON; None if it did not, or not yet."""
        ...

    def run_at_once(self) -> Coroutine[Any, Any, None]:
        """Run it, whatever comes of it, in the hope that one step is enough."""
        ...

    def stay(self) -> None:
        """Prepare for more than one, after the first."""
        ...

    def handle(self) -> Handle:
        """Return what else can be asked of it, or done with it."""
        ...


class Dispatching(Protocol):
    """Where every request goes, whatever it came by."""

    def begin(self, action: Action[..., Any], arrival: Arrival) -> Simple | None:
        """Take a request on that whoever asks runs itself; None: it is not as simple as that, and to be dispatched.

        It has no idempotency key, and whoever asks waits for the result.
        """
        ...

    def dispatch(self, arrival: Arrival, *, here: bool = False) -> Coroutine[Any, Any, Handle]:
        """Take a request on, or raise why not.

        With ``here``, whoever asks will wait for the result and do nothing else, so that may come out only then.
        """
        ...

    async def find(self, principal: Principal, request_id: str) -> Handle:
        """Return a request that the principal may see."""
        ...
