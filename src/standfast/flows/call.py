"""A request as it is stored with its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field

from standfast.flows.arrival import Address, Arrival, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.flows.action import Action
    from standfast.flows.tasks import Task


class Call(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request as it is stored with its run: who asks, and what with.

    ``at`` is when its event happened, in seconds, if its transport knows.
    """

    flow: str
    action: str
    tenant: str
    inputs: dict[str, Any]
    user: str = ""
    roles: tuple[str, ...] = ()
    session: str = ""
    transport: str = "local"
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    idempotency_key: str = ""
    address: Address = ()
    chain: tuple[Address, ...] = ()
    at: float | None = None

    @classmethod
    def of(cls, task: Task, at: float | None = None) -> Call:
        """Return what is stored of a request."""
        arrival = task.arrival
        return cls(
            flow=arrival.flow,
            action=arrival.action,
            tenant=arrival.tenant,
            inputs=msgspec.json.decode(task.inputs.packed),
            user=arrival.user,
            roles=tuple(sorted(arrival.principal.roles)),
            session=arrival.session,
            transport=arrival.transport,
            metadata=dict(arrival.metadata),
            idempotency_key=arrival.idempotency_key,
            address=task.address or (),
            chain=arrival.chain,
            at=at,
        )

    @property
    def arrival(self) -> Arrival:
        """What arrived."""
        return Arrival(
            flow=self.flow,
            action=self.action,
            inputs=self.inputs,
            principal=Principal(self.tenant, self.user, frozenset(self.roles)),
            session=self.session,
            transport=self.transport,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- checked when it arrived
            metadata=self.metadata,
            idempotency_key=self.idempotency_key,
            attended=False,
            chain=self.chain,
        )


class Input(Struct, frozen=True):
    """What a run is started with; nothing if its events lie in its inbox."""

    call: Call | None = None


def name_of(action: Action[..., Any]) -> str:
    """Return the name of the workflow of an action."""
    return f"{action.flow}.{action.name}"


_TENANT: Final = "tenant:"


def tags_of(tenant: str) -> tuple[str, ...]:
    """Return the tags of the run of a request."""
    return (_TENANT + tenant,)


def tenant_in(tags: Iterable[str]) -> str | None:
    """Return whose request a run is, by its tags; None: it is not the run of a request."""
    return next((tag.removeprefix(_TENANT) for tag in tags if tag.startswith(_TENANT)), None)
