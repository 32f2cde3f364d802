"""Which deliveries are taken, from whom, and which action they go to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

import msgspec

from standfast.durations import seconds
from standfast.errors import DeclarationError
from standfast.flows.flow import Action
from standfast.flows.request import Principal
from standfast.web.signatures import (
    TOLERANCE,
    BodySignature,
    GitHub,
    Refused,
    Slack,
    StandardWebhooks,
    Stripe,
    Unsigned,
    Verdict,
    Verified,
    Verifier,
)

if TYPE_CHECKING:
    from standfast.durations import Duration

__all__ = [
    "BodySignature",
    "Delivery",
    "GitHub",
    "Refused",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Unsigned",
    "Verdict",
    "Verified",
    "Verifier",
    "Webhook",
]


REMEMBERED: Final = 2 * TOLERANCE
"""Seconds for which deliveries have to be told from replays: as long as a signature may be old or ahead, twice."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery whose signature holds.

    Attributes:
        webhook: The name of the webhook that it came to.
        provider: Who sent it.
        id: What tells it from every other one of that webhook.
        event: What kind of event it tells of, or ``""``.
        payload: What the body says: JSON, or the fields of a form.
        headers: The headers, with names in lower case. Few providers sign them.
        secret_id: Which secret it was signed with.
    """

    webhook: str
    provider: str
    id: str
    event: str
    payload: Any
    headers: Mapping[str, str]
    secret_id: str = ""

    def __repr__(self) -> str:
        return f"<delivery {self.id!r} of {self.webhook!r}>"


To: TypeAlias = "Action[..., Any] | Mapping[str, Action[..., Any]]"
"""Where deliveries go: one action, or an action for each kind of event. Others are ignored."""


@final
class Webhook:
    """Deliveries of one provider, and the action they go to. They come in at ``POST /webhooks/{name}``.

        sf.web.Webhook("stripe", sf.web.webhooks.Stripe(os.environ["STRIPE_SECRET"]), to={"invoice.paid": billing.paid})

    A delivery is answered when it is recorded, and run after that; the same delivery is run once however often it
    comes. Which action it goes to, for whom and in which session is said here, and never by the body.

    Args:
        name: The last part of the address.
        verifier: How the provider signs.
        to: Where deliveries go.
        inputs: Makes what the action is called with, by name, from a delivery. By default an action with one
            parameter is called with the payload.
        session: Says which session a delivery belongs to; by default none, so that the actions must have a policy with
            another key. A session that a delivery makes is this webhook's, and no user gets in; unless ``principal``
            names a user, who has it then.
        principal: For whom the action runs, or a function that says so.
        event_time: Says when the event happened, in seconds since 1970 or as RFC 3339 writes it; None if that is not
            known. With it an old one that comes late does not replace a newer one in a debounced burst.
        max_body: Bytes of one body; by default what the app takes.
        body_time: How long a body may take to arrive; by default what the app allows.

    Raises:
        DeclarationError: The declaration cannot work; the error names the place and the reason.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        name: str,
        verifier: Verifier,
        to: To,
        *,
        inputs: Callable[[Delivery], Mapping[str, Any]] | None = None,
        session: Callable[[Delivery], str] | None = None,
        principal: Principal | Callable[[Delivery], Principal] | None = None,
        event_time: Callable[[Delivery], float | str | None] | None = None,
        max_body: int | None = None,
        body_time: Duration | None = None,
    ) -> None:
        self.name: Final = name
        self.where: Final = f"webhook {name!r}"
        if not _NAME.fullmatch(name):
            raise DeclarationError(self.where, "a name has small letters, digits, - and _, and at most 64 of them")
        if not hasattr(verifier, "verify"):
            raise DeclarationError(self.where, "without a verifier the sender cannot be known; see sf.web.webhooks")
        self.verifier: Final = verifier
        self._to: Final = self._checked(to)
        self._inputs, self._session, self._event_time = inputs, session, event_time
        self._principal: Final = principal or Principal(user=f"webhook:{name}")
        for action in self.actions:
            self._check_key(action)
        self.max_body: Final = max_body
        self.body_time: Final = None if body_time is None else seconds(body_time, what="body_time", minimum=0.001)
        self._names: Final = {} if inputs else {each: self._only_parameter(each) for each in self.actions}

    def __repr__(self) -> str:
        return f"<webhook {self.name!r} of {self.verifier.provider!r}>"

    @property
    def is_signed(self) -> bool:
        """False: nothing in a delivery says who sends it, so it needs the credentials that other requests need."""
        return not isinstance(self.verifier, Unsigned)

    @property
    def actions(self) -> tuple[Action[..., Any], ...]:
        """The actions that deliveries can go to."""
        return tuple(self._to.values()) if isinstance(self._to, Mapping) else (self._to,)

    def action_for(self, event: str) -> Action[..., Any] | None:
        """Return where an event goes, or nothing if it is ignored."""
        return self._to.get(event) if isinstance(self._to, Mapping) else self._to

    def inputs_for(self, delivery: Delivery, action: Action[..., Any]) -> Mapping[str, Any]:
        """Return what an action is called with."""
        return {self._names[action]: delivery.payload} if self._inputs is None else self._inputs(delivery)

    def session_for(self, delivery: Delivery) -> str:
        """Return the session that a delivery belongs to."""
        return "" if self._session is None else self._session(delivery)

    def principal_for(self, delivery: Delivery) -> Principal:
        """Return for whom the action runs."""
        return self._principal if isinstance(self._principal, Principal) else self._principal(delivery)

    def time_of(self, delivery: Delivery) -> float | str | None:
        """Return when the event of a delivery happened, if that is known."""
        return None if self._event_time is None else self._event_time(delivery)

    def _checked(self, to: To) -> To:
        actions = list(to.values()) if isinstance(to, Mapping) else [to]
        if not actions or not all(isinstance(each, cast("type[object]", Action)) for each in actions):
            raise DeclarationError(self.where, "`to` is an action of a flow, or a mapping of events to actions")
        for action in actions:
            if action.idempotency_window < REMEMBERED:
                problem = f"{action.where} forgets deliveries before their signatures are stale; make its"
                raise DeclarationError(self.where, f"{problem} idempotency_window at least {REMEMBERED:g} seconds")
        return dict(to) if isinstance(to, Mapping) else to

    def _check_key(self, action: Action[..., Any]) -> None:
        """Refuse a declaration in which no delivery has a key, so that the policy of the action would do nothing."""
        key, policy = action.policy.key, type(action.policy).__name__
        if key == "session" and self._session is None:
            problem = f"{action.where} is {policy} by session, and deliveries belong to none; say which with"
            todo = f'session=lambda delivery: ..., or give the action a key of another kind: sf.{policy}(key="tenant")'
            raise DeclarationError(self.where, f"{problem} {todo}")
        if key == "user" and isinstance(self._principal, Principal) and not self._principal.user:
            problem = f"{action.where} is {policy} by user, and its principal has no user; name one"
            raise DeclarationError(self.where, f'{problem}, or give the action another key: sf.{policy}(key="tenant")')

    def _only_parameter(self, action: Action[..., Any]) -> str:
        names = list(action.input_schema().get("properties", {}))
        if len(names) != 1:
            problem = f"{action.where} has {len(names)} parameters; say with inputs= what to call it with"
            raise DeclarationError(self.where, problem)
        return str(names[0])
