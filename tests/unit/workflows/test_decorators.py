"""Declaring workflows and steps: what makes no sense is refused there, not when it is needed."""

from __future__ import annotations

from typing import Any, cast

import pytest

import standfast as sf
from standfast.errors import DeclarationError


async def nothing() -> None:
    """Do nothing."""


async def does_nothing(_ctx: sf.Context) -> None:
    """Do nothing durably."""


@pytest.mark.parametrize(
    "options",
    [
        {"retry": "3"},
        {"retry": sf.Retry(factor=float("nan"))},
        {"retry": sf.Retry(on=cast("Any", [ValueError]))},
        {"raises": ValueError},
        {"raises": [KeyboardInterrupt]},
    ],
)
def test_options_of_a_step_that_make_no_sense_are_refused_where_it_is_declared(options: dict[str, Any]) -> None:
    """Not when the step has raised and is to be recorded."""
    with pytest.raises(DeclarationError):
        sf.step(**options)(nothing)


def test_a_workflow_without_a_context_is_refused_where_it_is_declared() -> None:
    """And so is one that is to be replayed in a way that there is not."""
    with pytest.raises(DeclarationError, match="first parameter"):
        sf.workflow(cast("Any", nothing))
    with pytest.raises(DeclarationError, match="strict"):
        sf.workflow(replay=cast("Any", "loose"))(cast("Any", does_nothing))
