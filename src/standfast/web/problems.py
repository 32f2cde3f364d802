"""Errors as answers: RFC 9457 problem details that say what happened, why, and what to do next."""

from __future__ import annotations

import inspect
import random
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response

from standfast.errors import (
    EngineNotOpenError,
    FlowError,
    HttpError,
    QueueFullError,
    QueueTimeoutError,
    RequestFailedError,
    RequestKeyError,
    RequestRejectedError,
    RequestSupersededError,
    StoreError,
    TooManyRequestsError,
)
from standfast.web.call import REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.errors import StandfastError
    from standfast.flows.request import RequestExplanation, RequestInfo
    from standfast.web.call import HandleLike


# --- what is known about a request, as JSON for callers ------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTED: Final = frozenset({"position", "waiting", "attempt"})
"""Fields that mean something when they are 0."""
_NEXT_WORD: Final = re.compile(r"_([a-z])")


def shown_info(info: RequestInfo) -> dict[str, Any]:
    """Return the status of a request, without empty fields."""
    facts = asdict(info)
    facts["explanation"] = None if info.explanation is None else shown_explanation(info.explanation)
    shown = {"requestId": facts.pop("id"), **_shown(facts)}
    return shown | ({"result": info.result} if info.status == "completed" else {})


def shown_explanation(explanation: RequestExplanation) -> dict[str, Any]:
    """Return why a request waits."""
    return _shown(asdict(explanation))


def shown_handle(handle: HandleLike) -> dict[str, Any]:
    """Return what the sender of a request is told before it has ended."""
    shown: dict[str, Any] = {"requestId": handle.id, "status": handle.status}
    if handle.position is not None:
        shown["position"] = handle.position
    if handle.explanation is not None:
        shown["explanation"] = shown_explanation(handle.explanation)
    return shown


def as_json(value: object) -> bytes:
    """Return JSON-shaped data, and structs in it, as JSON."""
    return msgspec.json.encode(value)


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in facts.items():
        if value or (name in _COUNTED and value == 0):
            is_instant = name.endswith("_at") or name == "since"
            in_camel_case = _NEXT_WORD.sub(lambda match: match[1].upper(), name)
            shown[in_camel_case] = shown_instant(value) if is_instant else value
    return shown


def shown_instant(microseconds: int) -> str:
    """Return an instant of store time as people write it."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- when callers that were refused come again: not all at the same moment -----------------------------------------

LEAST: Final = 2.0
"""Seconds over which callers are spread that may come again at once."""

_random: Final = random.Random()  # noqa: S311 -- spreads out callers that try again


def spread(seconds: float) -> float:
    """Return a time between this and half as much again: never earlier, and another one for each caller."""
    return round(seconds + _random.uniform(0.0, max(LEAST, seconds / 2)), 3)


# --- errors as answers: RFC 9457 problem details that say what happened, why, and what to do next ------------------

MEDIA_TYPE: Final = "application/problem+json"
RETRY: Final = 1.0
"""Seconds after which to come back, unless an error says otherwise."""

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CAN_BE_SENT_AGAIN: Final = frozenset({429, 503})
_KEPT_BACK: Final = (RequestFailedError, RequestKeyError)


def problem_response(error: BaseException, request_id: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as the answer to the caller."""
    facts = problem_of(error, request_id)
    told = dict(headers or {}) | {"Cache-Control": "no-store"}
    if (seconds := facts.get("retryAfter")) is not None:
        told["Retry-After"] = str(max(1, round(seconds)))
    challenge = getattr(error, "challenge", "")
    if challenge or facts["status"] == HTTPStatus.UNAUTHORIZED:
        told["WWW-Authenticate"] = challenge or "Bearer"
    return Response(msgspec.json.encode(facts), facts["status"], told, MEDIA_TYPE)


def refusal(problem: StandfastError, handle: HandleLike) -> Response:
    """Return the answer that tells why a request has no result."""
    return problem_response(problem, handle.id, told(handle)) if handle.is_taken_on else problem_response(problem)


def told(handle: HandleLike) -> dict[str, str]:
    """Return the headers that every answer about a request has."""
    headers = {REQUEST: handle.id, "Cache-Control": "no-store"}
    return headers | {"Idempotency-Replayed": "true"} if handle.is_replay else headers


def plain_problem(kind: str, title: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer that is made without an error."""
    facts = {"type": f"urn:standfast:{kind}", "title": title, "status": status}
    return Response(msgspec.json.encode(facts), status, headers, MEDIA_TYPE)


def problem_of(error: BaseException, request_id: str = "") -> dict[str, Any]:
    """Return what an answer says about an error. What was not written for callers is not shown to them."""
    status = status_of(error)
    if not isinstance(error, FlowError) or isinstance(error, _KEPT_BACK):
        known = request_id or getattr(error, "request_id", "")  # what the log calls it
        return _hidden(status, known, is_action=isinstance(error, RequestFailedError))
    if isinstance(error, HttpError):
        code, title, advice = error.code, error.title, error.advice
    else:
        code, (title, advice) = _name(type(error).__name__), _words(type(error).__doc__ or "")
    facts: dict[str, Any] = {"type": f"urn:standfast:{code}", "title": title, "status": status}
    facts |= {"detail": str(error)}
    if advice:
        facts["next"] = advice
    if known := request_id or getattr(error, "request_id", ""):
        facts["requestId"] = known
    facts |= _explained(error)
    if status in _CAN_BE_SENT_AGAIN:
        facts["retryAfter"] = spread(getattr(error, "retry_after", RETRY))
    return facts


def _explained(error: BaseException) -> dict[str, Any]:
    """Return who has the key or took the place, and since when, as far as an error knows it."""
    told: dict[str, Any]
    match error:
        case RequestRejectedError():
            told = {"key": error.key, "holder": error.request_id, "holderStatus": error.holder_status}
        case QueueFullError():
            told = {"key": error.key, "holder": error.holder, "waiting": error.waiting}
        case QueueTimeoutError():
            told = {"key": error.key, "holder": error.holder}
        case RequestSupersededError():
            return {"by": error.by} if error.by else {}
        case TooManyRequestsError():
            return {"share": error.what}
        case _:
            return {}
    if error.since:
        told["since"] = shown_instant(error.since)
    return {"explanation": {name: value for name, value in told.items() if value}}


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, FlowError):
        return error.status
    return 503 if isinstance(error, StoreError | EngineNotOpenError) else 500


def _hidden(status: int, request_id: str, *, is_action: bool) -> dict[str, Any]:
    """Return an answer that shows nothing of what went wrong inside: the log has it."""
    kind, title = ("request-failed", "The action failed") if is_action else ("internal", "Something went wrong here")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        kind, title = "unavailable", "The store does not answer now, so nothing was started"
    facts: dict[str, Any] = {"type": f"urn:standfast:{kind}", "title": title, "status": status}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        facts |= {"next": "Send the request again after a while.", "retryAfter": spread(RETRY)}
    return facts | ({"requestId": request_id} if request_id else {})


@lru_cache(maxsize=256)
def _words(docstring: str) -> tuple[str, str]:
    """Return what an error is, and what to do next: the first sentence of its docstring, and the rest of it."""
    text = inspect.cleandoc(docstring).partition("\n\nAttributes:")[0].partition("\n\nArgs:")[0]
    text = " ".join(text.replace("``", "").split())
    title, _, advice = text.partition(". ")
    return title.rstrip("."), advice


@lru_cache(maxsize=256)
def _name(kind: str) -> str:
    return _WORD.sub("-", kind.removesuffix("Error")).lower()
