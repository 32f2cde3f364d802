"""From a request to its key: which line it stands in, and how that is called.

The address of a line begins with ``"request"`` and the tenant, then says what kind of key it is. Each part stays a part
when it is stored (see :mod:`standfast.keys`), so no two keys share an address: not of two tenants, of two kinds of
keys, or of two flows. A session's key is the same in all flows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.errors import InvalidRequestKeyError, RequestKeyError
from standfast.flows.arrival import LONGEST_ID, Address, Arrival
from standfast.workflows.storing.failure_log import log_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.flows.options import Key, KeyFunction
    from standfast.flows.policies import Policy

_log: Final = logging.getLogger("standfast.flows")

REQUEST: Final = "request"
"""The kind of such a line, and the first part of its address: those of locks begin with a number."""


def address_of(policy: Policy, arrival: Arrival, inputs: Mapping[str, Any] | None = None) -> Address | None:
    """Return the address of the line that a request has to stand in; None: nothing is arbitrated.

    Args:
        policy: The policy of its action.
        arrival: What arrived.
        inputs: What a key function finds in ``arrival.inputs``: the checked inputs by name.

    Raises:
        RequestKeyError: A key function raised, or returned something else than text.
        InvalidRequestKeyError: It returned text that cannot be a key.
    """
    key, tenant = policy.key, arrival.principal.tenant
    if key == "session":
        return (REQUEST, tenant, "session", arrival.session) if arrival.session else None
    if key == "user":
        return (REQUEST, tenant, "user", arrival.principal.user) if arrival.principal.user else None
    if key == "tenant":
        return (REQUEST, tenant, "tenant")
    if key == "none":
        return None
    value = _ask(key, arrival if inputs is None else msgspec.structs.replace(arrival, inputs=inputs))
    return None if value is None else (REQUEST, tenant, "custom", arrival.flow, value)


def partition_of(key: Key, arrival: Arrival, inputs: Mapping[str, Any] | None = None) -> tuple[str, ...] | None:
    """Return what a limit counts a request by: nothing for all together; None: it does not count.

    Those who have no name, and those without a session, count together, so that nobody gets past a limit that way.

    Raises:
        RequestKeyError: A key function raised, or returned something else than text.
        InvalidRequestKeyError: It returned text that cannot be a key.
    """
    tenant = arrival.principal.tenant
    if key == "none":
        return ()
    if key == "tenant":
        return (tenant, "tenant")
    if key == "user":
        return (tenant, "user", arrival.principal.user)
    if key == "session":
        return (tenant, "session", arrival.session)
    value = _ask(key, arrival if inputs is None else msgspec.structs.replace(arrival, inputs=inputs))
    return None if value is None else (tenant, "key", value)


def label_of(address: Address) -> str:
    """Return a key in words, as refusals show it, without the tenant: ``"session 's-1'"``."""
    if len(address) == len((REQUEST, "tenant", "kind", "id")):  # of a session or a user: nearly all
        return f"{address[2]} {address[3]!r}"
    kind, *rest = address[2:]
    return f"key {rest[1]!r} of {rest[0]}" if kind == "custom" else " ".join([kind, *map(repr, rest)])


def _ask(function: KeyFunction, arrival: Arrival) -> str | None:
    """Return what a key function says, if it can be a key."""
    where = f"flow {arrival.flow!r}, action {arrival.action!r}"
    try:
        value = function(arrival)
    except Exception as error:
        log_failure(_log, f"the key function of {where}", error, flow=arrival.flow, action=arrival.action)
        raise RequestKeyError(where, f"raised {type(error).__name__}") from error
    if value is None:
        return None
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise RequestKeyError(where, f"returned a {type(value).__name__}; it must return text, or None for no key")
    text = str.__str__(value)  # a subclass of text could compare as it likes
    if problem := _problem(text):
        raise InvalidRequestKeyError(where, f"returned text that {problem}")
    return text


def _problem(text: str) -> str:
    if not text:
        return "is empty; it must return None for no key"
    if not text.isprintable():
        return "has characters that are not printable"
    return f"is longer than {LONGEST_ID} bytes" if len(text.encode()) > LONGEST_ID else ""
