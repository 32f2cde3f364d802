"""Taking deliveries: verified first, read afterwards, answered when they are recorded."""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import parse_qs

import msgspec
from starlette.responses import Response

from standfast.clock import SYSTEM_CLOCK, Clock
from standfast.errors import (
    FlowError,
    HttpError,
    IdempotencyInFlightError,
    InvalidInputError,
    RequestRejectedError,
    StandfastError,
    TooManyRequestsError,
)
from standfast.exits import FAILURES, failure_of
from standfast.flows.collect import EVENT_TIME
from standfast.flows.request import Call
from standfast.log_budget import LogBudget
from standfast.log_hook import as_logfmt
from standfast.web.asgi import headers_of
from standfast.web.call import content_type, is_json, read_body, read_json
from standfast.web.problems import MEDIA_TYPE, problem_response, spread
from standfast.web.signatures import Refused
from standfast.web.webhooks import Delivery
from standfast.workflows.failures import log_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from standfast.flows.flow import Action
    from standfast.web.call import Dispatching
    from standfast.web.limits import AppLimits, AppShares
    from standfast.web.signatures import Verified
    from standfast.web.webhooks import Webhook


FORM: Final = "application/x-www-form-urlencoded"
LATER: Final = 30
"""Seconds after which a provider may send a delivery again that could not be taken."""

_PLAIN_ID: Final = re.compile(r"[\x21-\x7e]{1,100}")
_MOST_FIELDS: Final = 1_000
_UNFIT: Final = frozenset({400, 422})
_log: Final = logging.getLogger("standfast.web.webhooks")


@final
class WebhookEndpoint:
    """The ASGI application behind ``POST /webhooks/{name}``."""

    def __init__(
        self,
        webhook: Webhook,
        dispatching: Dispatching,
        limits: AppLimits,
        shares: AppShares,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._webhook, self._dispatching, self._clock = webhook, dispatching, clock
        self._open: Final = shares.deliveries
        self._refusals: Final = LogBudget(_log)
        self._limit: Final = webhook.max_body or limits.body
        self._time: Final = webhook.body_time or limits.body_time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one delivery."""
        try:
            with self._open.of(self._webhook.name, (scope.get("client") or ("",))[0]):
                response = await self._answer(scope, receive)
        except TooManyRequestsError as problem:
            response = problem_response(problem)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        headers = headers_of(scope)
        try:
            body = await read_body(headers, receive, self._limit, self._time)
        except FlowError as problem:
            return problem_response(problem)
        verdict = self._webhook.verifier.verify(headers, body, self._clock.wall())
        if isinstance(verdict, Refused):
            address = (scope.get("client") or ("",))[0]
            facts = {"webhook": self._webhook.name, "reason": verdict.reason, "address": address}
            self._refusals.warning("webhook-refused", **facts)
            # The one answer to whatever is not signed: it tells nothing about why.
            return Response(msgspec.json.encode({"title": "Unauthorized", "status": 401}), 401, _CLOSED, MEDIA_TYPE)
        try:
            payload = await _read(content_type(headers), body)
        except HttpError as problem:
            self._refuse(verdict, 400, problem.problem)
            return _said("invalid", 400, reason=problem.problem)
        return await self._taken(headers, payload, verdict, body)

    async def _taken(self, headers: Mapping[str, str], payload: Any, verdict: Verified, body: bytes) -> Response:  # noqa: ANN401 -- whatever JSON can be
        webhook, verifier = self._webhook, self._webhook.verifier
        greeting = verifier.greeting(payload)
        if greeting is not None:
            return _json(greeting, 200)
        event = verifier.event(headers, payload)
        action = webhook.action_for(event)
        if action is None:
            self._tell("ignored", secret=verdict.secret_id)
            return _said("ignored", 202)
        try:
            arrival = self._arrival(headers, payload, verdict, body, event, action)
        except FAILURES as raised:  # by the user's functions
            log_failure(_log, f"the webhook {webhook.name!r}", failure_of(raised), webhook=webhook.name)
            return _said("failed", 500)
        try:
            handle = await self._dispatching.dispatch(arrival)
        except StandfastError as problem:
            response = _answer_for(problem)
            if response.status_code in _UNFIT:
                self._refuse(verdict, response.status_code, str(problem))
            else:
                self._tell("answered", secret=verdict.secret_id, status=response.status_code)
            return response
        self._tell("duplicate" if handle.is_replay else "accepted", secret=verdict.secret_id, request=handle.id)
        if handle.is_replay:
            return _said("duplicate", 200, requestId=handle.id)
        return _said("accepted", 202, requestId=handle.id)

    def _arrival(
        self,
        headers: Mapping[str, str],
        payload: Any,  # noqa: ANN401 -- whatever JSON can be
        verdict: Verified,
        body: bytes,
        event: str,
        action: Action[..., Any],
    ) -> Call:
        webhook, verifier = self._webhook, self._webhook.verifier
        delivery = Delivery(
            webhook=webhook.name,
            provider=verifier.provider,
            id=_id(verifier.delivery_id(headers, payload), body),
            event=event,
            payload=payload,
            headers=headers,
            secret_id=verdict.secret_id,
        )
        at = webhook.time_of(delivery)
        about = {
            "deliveryId": delivery.id,
            "provider": delivery.provider,
            "event": delivery.event,
            "name": delivery.webhook,
        }
        return Call(
            flow=action.flow,
            action=action.name,
            inputs=webhook.inputs_for(delivery, action),
            principal=webhook.principal_for(delivery),
            session=webhook.session_for(delivery),
            transport="webhook",
            metadata={"webhook": about} | ({} if at is None else {EVENT_TIME: at}),
            idempotency_key=f"webhook:{webhook.name}:{delivery.id}",
            attended=False,
        )

    def _refuse(self, verdict: Verified, status: int, problem: str) -> None:
        """Tell that what a known sender has signed is not taken: the answer alone is read by no person."""
        name, secret = self._webhook.name, verdict.secret_id
        self._refusals.warning("webhook-unfit", webhook=name, secret=secret, status=status, problem=problem)

    def _tell(self, what: str, **facts: str | int) -> None:
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", as_logfmt({"event": f"webhook-{what}", "webhook": self._webhook.name, **facts}))


def _answer_for(problem: StandfastError) -> Response:
    """Return what a provider is told when a delivery was not taken on: not to send it again, or to send it later."""
    if isinstance(problem, RequestRejectedError):
        if getattr(problem, "holder_is_durable", True):
            return _said("skipped", 200, reason="in_flight", requestId=problem.request_id)
        # What has the key may die and leave nothing behind, so this delivery has to come again.
        return _said("busy", 503, {"Retry-After": _later()}, requestId=problem.request_id)
    if isinstance(problem, IdempotencyInFlightError):
        return _said("duplicate", 200, requestId=problem.request_id)
    if isinstance(problem, InvalidInputError):
        return _said("invalid", 400, reason=str(problem))
    if isinstance(problem, FlowError):
        return problem_response(problem)
    _log.error("%s", as_logfmt({"event": "webhook-unrecorded", "problem": type(problem).__name__}))
    return _said("unavailable", 503, {"Retry-After": _later()})


async def _read(kind: str, body: bytes) -> Any:  # noqa: ANN401 -- whatever JSON can be
    """Return what a verified body says: JSON, or a form, which may have JSON in a field called ``payload``."""
    if is_json(kind):
        return await read_json(body)
    if kind != FORM:
        raise HttpError("unsupported-body", "the body is neither JSON nor a form")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HttpError("unsupported-body", "the body is no form") from None
    form = {name: values[0] for name, values in fields.items()}
    return await read_json(form["payload"].encode()) if set(form) == {"payload"} else form


def _id(given: str, body: bytes) -> str:
    """Return the id of a delivery: the provider's, or a digest where there is none or it is not plain."""
    if _PLAIN_ID.fullmatch(given):
        return given
    return f"sha256-{sha256(given.encode() if given else body).hexdigest()}"


def _later() -> str:
    """Return after how many seconds a provider may send again; a storm of deliveries is spread out."""
    return str(round(spread(LATER)))


def _said(status: str, code: int, headers: dict[str, str] | None = None, **facts: str) -> Response:
    return _json({"status": status, **facts}, code, headers)


def _json(body: Mapping[str, Any], code: int, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), code, _CLOSED | (headers or {}), "application/json")


_CLOSED: Final = {"Cache-Control": "no-store"}
