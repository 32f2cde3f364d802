"""What arrives: who asks, for which action, with what. A trusted transport says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from standfast.errors import InvalidArrivalError
from standfast.flows.shares import sharer_of

Address: TypeAlias = tuple[str, ...]
"""Where the line of a key lies; see :mod:`standfast.flows.keying`."""

Transport: TypeAlias = Literal["http", "webhook", "chat", "mcp", "schedule", "local"]
OnDisconnect: TypeAlias = Literal["cancel", "continue"]

LONGEST_TENANT: Final = 100
LONGEST_ID: Final = 200
"""In bytes of UTF-8: with these, every key that follows from a request fits into every store."""
LONGEST_IDEMPOTENCY_KEY: Final = 200
HIGHEST_PRIORITY: Final = 100
"""And the lowest is as far below 0."""


def check_id(what: str, text: str, longest: int = LONGEST_ID) -> None:
    """Refuse what cannot be part of a key. The error names what it is, never the text.

    Raises:
        InvalidArrivalError: It is no text, not printable, or too long.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArrivalError(what, f"is a {type(text).__name__}; it must be text")
    if not text.isprintable():
        raise InvalidArrivalError(what, "has characters that are not printable")
    if len(text) > longest or (not text.isascii() and len(text.encode()) > longest):
        raise InvalidArrivalError(what, f"is longer than {longest} bytes")


def check_priority(priority: int) -> None:
    """Refuse what is no small whole number.

    Raises:
        InvalidArrivalError: It is none.
    """
    if type(priority) is not int or abs(priority) > HIGHEST_PRIORITY:
        limits = f"from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}"
        raise InvalidArrivalError("the priority", f"is no whole number {limits}")


class Principal(Struct, frozen=True):
    """Who asks. A trusted transport makes it from credentials, never from the body of a request.

    Attributes:
        tenant: Whose data it is: nothing of one tenant is ever seen by another.
        user: Who it is; empty if nobody is known by name.
        roles: What the user may do, see the ``roles`` of an action.

    Raises:
        InvalidArrivalError: A text is too long, not printable, or a tenant is missing.
    """

    tenant: str = "default"
    user: str = ""
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what could not be part of a key."""
        check_id("the tenant", self.tenant, LONGEST_TENANT)
        if not self.tenant:
            raise InvalidArrivalError("the tenant", "is empty; it must be named")
        check_id("the user", self.user)


NOBODY: Final = Principal()


class Arrival(Struct, frozen=True, kw_only=True):
    """What a trusted transport hands to a dispatcher. Nothing of it but ``inputs`` comes from the body of a request.

    A key function gets one as well, and finds in ``inputs`` what the action will be called with, by name and checked.

    Attributes:
        flow: The kind of the flow.
        action: The name of the action.
        inputs: What to call it with: values by name, or a JSON object as bytes.
        principal: Who asks.
        session: Which conversation it belongs to; empty for none.
        transport: What it came by.
        metadata: What else the transport knows, such as ``{"webhook": {"deliveryId": ...}}``.
        idempotency_key: Requests of one tenant and user with the same key are one request, for a while.
        attended: The caller waits for the result on its own connection.
        chain: The keys that are held by those who wait for this request, the outermost first; what comes from outside
            is signed, see :attr:`Request.signed_chain <standfast.flows.request.Request.signed_chain>`.
        on_disconnect: What happens when such a caller goes away; by default what the action says.
        priority: Who goes first among those that wait for a limit of the action; by default what the action says. The
            transport decides it, never the caller. A durable request waits in the order of arrival, whatever it is.
    """

    flow: str
    action: str
    inputs: Mapping[str, Any] | bytes = field(default_factory=dict[str, Any])
    principal: Principal = NOBODY
    session: str = ""
    transport: Transport = "local"
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    idempotency_key: str = ""
    attended: bool = True
    chain: tuple[Address, ...] = ()
    on_disconnect: OnDisconnect | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be part of a key."""
        if self.session != "":  # most have none; and what is no text is no empty one
            check_id("the session", self.session)
        if self.idempotency_key != "":
            check_id("the idempotency key", self.idempotency_key, LONGEST_IDEMPOTENCY_KEY)
        if self.priority is not None:
            check_priority(self.priority)

    @property
    def tenant(self) -> str:
        """The principal's tenant."""
        return self.principal.tenant

    @property
    def user(self) -> str:
        """The principal's user; empty if nobody is known by name."""
        return self.principal.user

    @property
    def sharer(self) -> str:
        """As whom it is counted within its tenant."""
        return sharer_of(self.principal.user, self.transport)
