"""What holds for every program that contends for keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.exclusion.program import FATES, MODE_NAMES, Actor, run_program


def actors(most_keys: int, fates: tuple[str, ...] = FATES) -> st.SearchStrategy[list[Actor]]:
    """Make up a company of actors."""
    actor = st.builds(
        Actor,
        arrives=st.integers(0, 12),
        keys=st.lists(st.integers(0, 2), min_size=1, max_size=most_keys, unique=True).map(tuple),
        mode=st.integers(0, len(MODE_NAMES) - 1),
        stays=st.integers(0, 6),
        fate=st.sampled_from(fates),
        fate_after=st.integers(0, 12),
    )
    return st.lists(actor, min_size=1, max_size=12)


@given(st.integers(0, 2**32), actors(most_keys=1))
def test_no_program_breaks_exclusion_or_order_or_loses_a_key(seed: int, company: list[Actor]) -> None:
    """Whatever is cancelled, times out or fails: modes exclude, the line is in order, and all is idle at the end."""
    run_program(seed, company)


@given(st.integers(0, 2**32), actors(most_keys=3))
def test_no_program_that_nests_keys_can_get_stuck(seed: int, company: list[Actor]) -> None:
    """In whatever order tasks take several keys, a circle is refused, and only a real one."""
    run_program(seed, company)


@given(st.integers(0, 2**32), actors(most_keys=1, fates=("normal",)))
def test_everybody_who_waits_is_served(seed: int, company: list[Actor]) -> None:
    """If nobody gives up, nobody is left out."""
    assert run_program(seed, company) == ["done"] * len(company)
