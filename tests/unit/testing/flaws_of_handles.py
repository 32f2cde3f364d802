"""Flaws of opening a store again and of telling who died."""

from __future__ import annotations

from tests.unit.testing.flaws import flaw
from tests.unit.testing.tiny import Tiny


@flaw
class _AnotherIsEmpty(Tiny):
    """Another handle is one on other records."""

    async def another(self) -> Tiny:
        return type(self)(self.clock)


@flaw
class _SeesDeathEverywhere(Tiny):
    """Whatever it is asked about has died."""

    def is_dead(self, token: str) -> bool:  # noqa: ARG002 -- that is the flaw
        return True


@flaw
class _HandsOutTokens(Tiny):
    """It hands out liveness tokens that say nothing."""

    def liveness_token(self) -> str:
        return "me"


@flaw
class _StumblesOverNonsense(Tiny):
    """It raises on what is no liveness token."""

    def is_dead(self, token: str) -> bool:
        return int(token) < 0
