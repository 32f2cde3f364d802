"""How many keys each tenant has in use, once there are so many in all that it matters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, final

from standfast.errors import TooManyRequestsError
from standfast.flows.shares import is_spent

if TYPE_CHECKING:
    from collections.abc import Iterable

AGAIN: Final = 1.0
"""Seconds for which keys that are free again may still be counted: it is not worth more than one look a second."""


@final
class KeyCount:
    """Counts keys by tenant and by who uses them, now and then.

    Args:
        most: How many one tenant may have.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._tenants, self._sharers = Counter[str](), Counter[tuple[str, str]]()
        self._at = float("-inf")

    def add(self, tenant: str, sharer: str, used: Iterable[tuple[str, str]]) -> None:
        """Count one more key of a tenant, given the tenants and users of all that are in use.

        Raises:
            TooManyRequestsError: The tenant has as many as it may, or the user its share of them.
        """
        now = asyncio.get_running_loop().time()
        if now - self._at >= AGAIN:
            self._sharers, self._at = Counter(used), now
            self._tenants = Counter[str]()
            for (owner, _), number in self._sharers.items():
                self._tenants[owner] += number
        left, own = self._most - self._tenants[tenant], self._sharers[tenant, sharer]
        if left <= 0:
            raise TooManyRequestsError("keys in use of the tenant", self._most, AGAIN)
        if is_spent(own, left):
            raise TooManyRequestsError("keys in use of this user", own, AGAIN)
        self._tenants[tenant] += 1
        self._sharers[tenant, sharer] += 1
