"""Flows under thousands of simulated schedules: every policy, durable and attended, on servers that die and mishear."""

from __future__ import annotations

from typing import Final, Literal
from unittest.mock import patch

import pytest

from holdfast.flows import declaring
from holdfast.testing import simulate
from holdfast.workflows.declaring import definition
from tests.simulation.flow_stage import known_signature
from tests.simulation.flow_world import serve
from tests.sizes import rounds

MOST_STEPS: Final = 400_000
"""How many callbacks a seed may run: several times as many as the longest of the right code."""


def run(seed: int, kind: Literal["shared", "local"]) -> str:
    """Run one seed, and return what tells its steps from those of any other run."""
    with patch.object(definition, "signature_of", known_signature), patch.object(
        declaring, "signature_of", known_signature
    ):
        return simulate(seed, serve, seed, kind, step_limit=MOST_STEPS)
