"""What every dispatcher promises, alone or as one of two servers on one store."""

from __future__ import annotations

import pytest

from tests.conformance.burst_contract import BurstContract
from tests.conformance.dispatch_stage import Pair, Stage, names_of
from tests.conformance.follow_contract import FollowContract
from tests.conformance.repeat_contract import RepeatContract
from tests.conformance.stop_contract import StopContract
from tests.conformance.turn_contract import TurnContract

__all__ = ["DispatchContract", "Pair", "names_of"]


class DispatchContract(TurnContract, BurstContract, FollowContract, StopContract, RepeatContract):
    """The promises of the seam; a subclass provides ``pair``: two dispatchers, or the same one twice."""

    @pytest.fixture
    def stage(self) -> Stage:
        """What the actions do."""
        return Stage()
