"""Forks with blocking spaces: Celery's prefork pool, and gunicorn with ``--preload``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from standfast import blocking
from tests.fork_server import forked_run

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


# A fork beside threads is what is tested; newer Pythons warn of it. What is left open is told.
WARNINGS = ["-W", "always::ResourceWarning", "-W", "ignore:This process:DeprecationWarning"]


def said(program: str, *arguments: object) -> tuple[int, list[str], str]:
    """Run a program of ``programs/`` to its end; return its status, the lines it printed and what it complained of."""
    module = f"tests.integration.blocking.programs.{program}"
    done = forked_run(
        [sys.executable, *WARNINGS, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("how", ["os", "multiprocessing"])
def test_a_forked_child_opens_the_space_anew_by_itself(tmp_path: Path, how: str) -> None:
    """The child uses what it inherited; the parent's hold is the parent's, and the parent goes on."""
    status, lines, complaints = said("fork", f"sqlite:///{tmp_path / 'a.db'}", how)

    assert lines == [
        "child-takes-what-the-parent-holds WouldWaitError",
        "child-takes-another True",
        "child-counts 1",
        "child-asks-the-parents-hold forked",
        "child-checks-the-parents-hold forked",
        "child-waits-for-its-loss forked",
        "child-has-a-presence-of-its-own True",
        "child-ended 0",
        "parent-still-holds True",
        "parent-counts 2",
        "parent-takes-it-again True",
        "parent-ended",
    ]
    assert (status, complaints) == (0, "")


def test_workers_forked_from_a_loaded_application_exclude_each_other(tmp_path: Path) -> None:
    """Three workers with three threads each lose none of their increments, and end well."""
    status, lines, complaints = said("prefork", f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "number")

    assert (status, lines, complaints) == (0, ["45 0 0 0"], "")


@pytest.mark.parametrize("how", ["idle", "held", "waiting", "raised"])
def test_a_program_that_closes_nothing_ends_without_delay_or_complaint(tmp_path: Path, how: str) -> None:
    """Whatever was left open, the end of the program neither hangs nor warns."""
    _, lines, complaints = said("leave_open", f"sqlite:///{tmp_path / 'a.db'}", how)

    assert lines == ["ended"]
    assert complaints.strip().splitlines()[-1:] == (["KeyError: 'raised'"] if how == "raised" else [])


def test_the_end_of_a_program_ends_its_presence(tmp_path: Path) -> None:
    """Nobody has to wait for the lease of a program that has ended, though it closed nothing."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    said("leave_open", url, "idle")

    with blocking.open(url) as space:
        assert space.scan(*space.key("presence").within(), limit=10).records == {}
