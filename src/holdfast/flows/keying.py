"""From a request to its key: which line it stands in, and how that is called.

The address of a line begins with ``"request"`` and the tenant, then says what kind of key it is. Each part stays a part
when it is stored (see :mod:`holdfast.keys`), so no two keys share an address: not of two tenants, of two kinds of keys,
or of two flows. A session's key is the same in all flows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import InvalidRequestKeyError, RequestKeyError
from holdfast.flows.request import LONGEST_ID, Address, Arrival

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.flows.policies import KeyFunction, Policy

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
    raise NotImplementedError


def label_of(address: Address) -> str:
    """Return a key in words, as refusals show it, without the tenant: ``"session 's-1'"``."""
    raise NotImplementedError
