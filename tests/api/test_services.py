"""A test that lacks its server is skipped on a laptop and fails in continuous integration."""

from __future__ import annotations

import pytest

from tests.services import require

VARIABLE = "STANDFAST_REQUIRE_SERVICES"


def test_what_is_there_is_used() -> None:
    """Nothing happens when the server is found."""
    require("/usr/bin/git", "git")


def test_a_missing_server_skips_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a laptop the other tests go on."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="git is missing"):
        require(None, "git")


def test_a_missing_server_fails_its_tests_where_all_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """In continuous integration nothing is left out silently."""
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="git is missing"):
        require(None, "git")
