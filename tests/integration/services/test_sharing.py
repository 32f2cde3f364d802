"""How tests share servers, and what happens where one is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.services.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import os, pathlib
def test_one(redis_url):
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(redis_url)
def test_other():
    pass
"""


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run two tests, one of which wants a server, in two processes."""
    (folder / "test_it.py").write_text(TESTS)
    options = [
        "-n2",
        "--dist=each",
        "-p",
        "xdist.plugin",
        "-p",
        "tests.services.plugin",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
    ]
    environment = {
        name: value for name, value in os.environ.items() if "PYTEST" not in name and "STANDFAST" not in name
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments, str(folder / "test_it.py")],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.services
@pytest.mark.usefixtures("redis_url")  # skips where there is none
def test_the_processes_of_a_test_run_share_a_server(tmp_path: Path) -> None:
    """A server is started once for all of them."""
    ran = run(tmp_path)

    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "gw0").read_text() == (tmp_path / "gw1").read_text() != ""


def test_a_missing_server_is_named_loudly_once_and_its_tests_are_skipped(tmp_path: Path) -> None:
    """On a laptop the other tests go on, and nobody overlooks what was not tested."""
    ran = run(tmp_path, STANDFAST_SERVICES_FOLDER=str(tmp_path / "nothing"))

    assert ran.returncode == 0, ran.stdout
    assert "2 passed, 2 skipped" in ran.stdout
    assert ran.stdout.count("NOT TESTED ON redis: it has not been fetched: run `make fetch-services`") == 1


def test_a_missing_server_fails_its_tests_where_all_must_be_there(tmp_path: Path) -> None:
    """In continuous integration nothing is left out."""
    ran = run(tmp_path, STANDFAST_SERVICES_FOLDER=str(tmp_path / "nothing"), STANDFAST_REQUIRE_SERVICES="1")

    assert ran.returncode == 1
    assert "redis (it has not been fetched" in ran.stdout


def test_tests_that_want_a_server_can_be_left_out(tmp_path: Path) -> None:
    """Taking the URL of a server marks a test."""
    ran = run(tmp_path, "-m", "not services")

    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
    assert "skipped" not in ran.stdout
