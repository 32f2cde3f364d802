"""How many keys each tenant has in use, once there are so many in all that it matters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, final

from standfast.errors import TooManyRequestsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.flows.arbiters.protocol import Address

AGAIN: Final = 1.0
"""Seconds for which keys that are free again may still be counted: it is not worth more than one look a second."""


@final
class KeyCount:
    """Counts keys by tenant, now and then.

    Args:
        most: How many one tenant may have.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._counts = Counter[str]()
        self._at = float("-inf")

    def add(self, tenant: str, addresses: Iterable[Address]) -> None:
        """Count one more key of a tenant, given all that are in use.

        Raises:
            TooManyRequestsError: The tenant has as many as it may.
        """
        now = asyncio.get_running_loop().time()
        if now - self._at >= AGAIN:
            self._counts, self._at = Counter(address[1] for address in addresses), now
        if self._counts[tenant] >= self._most:
            raise TooManyRequestsError("keys in use of the tenant", self._most, AGAIN)
        self._counts[tenant] += 1
