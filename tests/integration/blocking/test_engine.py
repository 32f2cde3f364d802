"""Blocking engines in processes that fork, and in programs that end without closing anything."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from standfast import blocking
from standfast.clock import monotonic
from tests.integration.blocking.programs.engine_left_open import waits
from tests.integration.blocking.test_forks import said

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_a_forked_child_opens_the_engine_anew_by_itself(tmp_path: Path, how: str) -> None:
    """It drives runs of its own; those of the parent stay the parent's, and the parent goes on."""
    status, lines, complaints = said("engine_fork", f"sqlite:///{tmp_path / 'a.db'}", how)

    assert lines == [
        "child-knows-the-run waits",
        "child-signals-it True",
        "child-hears-its-result True",
        "child-starts-another True",
        "workers-there-are 2",
        "child-has-closed-it EngineNotOpenError",
        "child-ended 0",
        "parent-hears-the-result True",
        "parent-drives True",
        "parent-ended",
    ]
    assert (status, complaints) == (0, "")


def test_workers_forked_from_a_loaded_application_start_each_run_once(tmp_path: Path) -> None:
    """Three workers with three threads each ask for the same orders; each is shipped once, and all hear of it."""
    status, lines, complaints = said("engine_prefork", f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "shipped")

    assert (status, lines, complaints) == (0, ["first order-0 order-1 order-2 order-3 order-4 0 0 0"], "")


@pytest.mark.parametrize("how", ["waiting", "result", "step", "raised"])
def test_a_program_that_closes_nothing_ends_soon_and_hands_its_runs_back(tmp_path: Path, how: str) -> None:
    """Whatever is under way, the end of the program does not hang, says what it waits for, and gives its lease back."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    began = monotonic()
    _, lines, complaints = said("engine_left_open", url, how)

    assert lines == ["ended"]
    assert monotonic() - began < 30
    last = {"raised": "KeyError: 'raised'", "step": "waiting up to 1 s for what is under way: left (endless)"}.get(
        how, ""
    )
    assert complaints.strip().rpartition("\n")[2].partition(";")[0] == last
    with blocking.Engine(url, drive=False) as engine:
        assert engine.get("left").owner == ""
        assert engine.space.scan(*engine.space.key("presence").within(), limit=10).records == {}


def test_a_run_that_was_left_goes_on_elsewhere(tmp_path: Path) -> None:
    """Another process takes up what a program handed back when it ended."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    said("engine_left_open", url, "waiting")

    with blocking.Engine(url, workflows=[waits]) as engine:
        engine.signal("left", "go", "at last")
        assert engine.result("left", timeout=20) == "at last"
