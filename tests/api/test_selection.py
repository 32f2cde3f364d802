"""What ``make test`` leaves out is named, and what is named exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import selection
from tests.conformance import test_postgresql, test_redis
from tests.simulation import flow_mutants, lock_mutants, request_mutants, workflow_mutants

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("suite", selection.ESSENTIAL, ids=lambda suite: suite.__name__)
def test_an_essential_part_is_a_part_of_its_contract(suite: type) -> None:
    """A part that was renamed would silently be left out."""
    assert selection.ESSENTIAL[suite] <= {part.__name__ for part in suite.__mro__}


def test_a_second_way_to_a_server_is_a_class_of_tests() -> None:
    """A class that was renamed would silently be run twice."""
    assert all(hasattr(test_postgresql, name) or hasattr(test_redis, name) for name in selection.SECOND_WAYS)


def test_a_rare_mutant_is_a_mutant() -> None:
    """One that was renamed would silently be hunted in every run."""
    of_workflows = {*workflow_mutants.MUTANTS, *workflow_mutants.OPERATED_MUTANTS}
    every = {*flow_mutants.MUTANTS, *lock_mutants.MUTANTS, *request_mutants.MUTANTS, *of_workflows}
    assert every >= selection.RARE_MUTANTS


@pytest.mark.parametrize("place", [*selection.STRIKES, selection.DISPATCH])
def test_a_place_of_strikes_exists(place: str) -> None:
    """Folders and files are named from the root of the project."""
    assert (ROOT / place).exists()


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in selection.LONG.items() for name in names])
def test_a_long_test_exists(file: str, name: str) -> None:
    """One that was renamed would silently be run each time."""
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_make_test_asks_for_what_is_not_left_out() -> None:
    """Other words for the same would make every process collect ten thousand tests for nothing."""
    assert f'-m "{selection.IN_MAKE_TEST}"' in (ROOT / "Makefile").read_text()
