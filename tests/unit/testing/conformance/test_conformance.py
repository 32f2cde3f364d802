"""The conformance suite passes what keeps the contract, and fails whatever breaks it."""

from __future__ import annotations

import pytest

from tests.unit.testing import flaws_of_commits, flaws_of_groups, flaws_of_handles, flaws_of_keys
from tests.unit.testing.flaws import FLAWS
from tests.unit.testing.suite import failures
from tests.unit.testing.tiny import Tiny

MODULES = (flaws_of_commits, flaws_of_groups, flaws_of_handles, flaws_of_keys)


def test_a_backend_that_keeps_the_contract_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny backend has no flaw: every test passes, so the flaws below are all that is wrong with the others."""
    assert list(failures(Tiny, monkeypatch)) == []


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_noticed(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one test of the suite fails on a backend with this flaw."""
    assert next(failures(FLAWS[flaw], monkeypatch), None) is not None
