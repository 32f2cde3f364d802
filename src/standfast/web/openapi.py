"""The OpenAPI description of an application, made from the signatures of its actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from standfast.flows.request import LONGEST_ID
from standfast.web.call import HEADER as CHAIN
from standfast.web.call import IDEMPOTENCY_KEY, SESSION
from standfast.web.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.flows.flow import Action


SCHEMAS: Final = "#/components/schemas"
_TEXT: Final = {"type": "string"}
_NAME: Final = {"type": "string", "maxLength": LONGEST_ID, "pattern": "^[ -~]*$"}
_NUMBER: Final = {"type": "string", "pattern": "^[0-9]{1,15}$"}
_ANSWERS: Final = {
    "400": "A header cannot be read",
    "401": "There are no credentials, or they do not hold",
    "403": "The caller may not do this",
    "408": "The headers or the body did not arrive in time",
    "409": "Another request has the key, or took this one's place",
    "411": "The body has to say its length",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "421": "It is not served under that name",
    "422": "The inputs do not fit, or the idempotency key was used for something else",
    "429": "Too many requests wait already",
    "431": "The headers are too large, or too many",
    "500": "The action failed",
    "503": "The turn did not come in time, or it cannot be decided now who may run",
}
_EXPLANATION: Final = {
    "type": "object",
    "required": ["key"],
    "properties": {
        **dict.fromkeys(("key", "policy", "holder", "holderAction", "holderStatus"), _TEXT),
        "since": {"type": "string", "format": "date-time"},
        "position": {"type": "integer"},
        "waiting": {"type": "integer"},
    },
}
_REQUEST: Final = {
    "type": "object",
    "required": ["requestId", "status"],
    "properties": {
        "requestId": _TEXT,
        "status": _TEXT,
        "position": {"type": "integer"},
        "explanation": _EXPLANATION,
        "result": {},
    },
}
_PROBLEM: Final = {
    "type": "object",
    "required": ["title", "status"],
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "next": _TEXT,
        "requestId": _TEXT,
        "retryAfter": {"type": "number"},
        "explanation": _EXPLANATION,
        "by": _TEXT,
        "share": _TEXT,
    },
}


def describe(title: str, version: str, actions: Iterable[Action[..., Any]], *, is_guarded: bool) -> dict[str, Any]:
    """Return the description, as OpenAPI 3.1.

    Args:
        title: What the application is called.
        version: Which version of it this is.
        actions: The actions that are shown.
        is_guarded: Whether callers need credentials.
    """
    schemas: dict[str, Any] = {"Request": _REQUEST, "Problem": _PROBLEM}
    paths = {f"/flows/{each.flow}/{each.name}": {"post": _operation(each, schemas)} for each in actions}
    components: dict[str, Any] = {"schemas": schemas}
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths | _following(),
        "components": components,
    }
    if is_guarded:
        components["securitySchemes"] = {"credentials": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"credentials": []}]
    return description


def _operation(action: Action[..., Any], schemas: dict[str, Any]) -> dict[str, Any]:
    name = f"{action.flow}.{action.name}"
    taken = _hoisted(name, action.input_schema(), schemas)
    given = _hoisted(name, action.output_schema(), schemas)
    answers: dict[str, Any] = {"202": _answer("It goes on by itself", _ref("Request"))}
    answers["200"] = _answer("What the action returned", given)
    answers["200"]["content"] |= {"text/event-stream": {"schema": _TEXT}}
    operation: dict[str, Any] = {
        "operationId": name,
        "tags": [action.flow],
        "parameters": [_header(SESSION, _NAME), _header(IDEMPOTENCY_KEY, _NAME), _header("Prefer"), _header(CHAIN)],
        "requestBody": {"required": bool(taken.get("required")), "content": {"application/json": {"schema": taken}}},
        "responses": answers | _problems("404", *_ANSWERS),
    }
    return operation | ({"description": action.description} if action.description else {})


def _following() -> dict[str, Any]:
    one: dict[str, Any] = {"name": "id", "in": "path", "required": True, "schema": _TEXT}
    known = _answer("Where it stands", _ref("Request"))
    stream = {"description": "Its events", "content": {"text/event-stream": {"schema": _TEXT}}}
    problems = _problems("400", "401", "403", "404", "421", "429", "503")
    return {
        "/requests/{id}": {
            "parameters": [one],
            "get": {"operationId": "show", "responses": {"200": known} | problems},
            "delete": {"operationId": "cancel", "responses": {"202": known} | problems | _problems("409")},
        },
        "/requests/{id}/events": {
            "parameters": [one],
            "get": {
                "operationId": "follow",
                "parameters": [_header("Last-Event-ID", _NUMBER), {"name": "after", "in": "query", "schema": _NUMBER}],
                "responses": {"200": stream, "204": {"description": "There is nothing more to come"}} | problems,
            },
        },
    }


def _hoisted(owner: str, schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose definitions were moved to where the whole description has them, under names of its own."""
    for name, definition in schema.get("$defs", {}).items():
        schemas[f"{owner}.{name}"] = _renamed(definition, owner)
    return cast("dict[str, Any]", _renamed({key: value for key, value in schema.items() if key != "$defs"}, owner))


def _renamed(part: Any, owner: str) -> Any:  # noqa: ANN401 -- any part of a schema
    if isinstance(part, list):
        return [_renamed(value, owner) for value in cast("list[object]", part)]
    if not isinstance(part, dict):
        return part
    known = cast("dict[str, Any]", part)
    renamed = {key: _renamed(value, owner) for key, value in known.items()}
    if isinstance(ref := known.get("$ref"), str):
        renamed["$ref"] = f"{SCHEMAS}/{owner}.{ref.rpartition('/')[2]}"
    return renamed


def _problems(*statuses: str) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": _ref("Problem")}}
    known = _ANSWERS | {"404": "There is nothing by that name"}
    return {status: {"description": known[status], "content": content} for status in sorted(statuses)}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"{SCHEMAS}/{name}"}


def _header(name: str, schema: dict[str, Any] = _TEXT) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": schema}
