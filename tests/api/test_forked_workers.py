"""Tests that are spread over forks are reported as if each process had collected them."""

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
import os, pathlib, random, pytest, warnings

COLLECTED, CHANCE = os.getpid(), random.random()

@pytest.fixture(scope="session", autouse=True)
def session():
    name = os.environ["PYTEST_XDIST_WORKER"]
    yield
    pathlib.Path(f"ended-{name}").write_text(f"{COLLECTED != os.getpid()} {random.random() != CHANCE}")

def test_a_fails():
    print("to stdout")
    os.write(2, b"to stderr")
    assert 0

def test_b_crashes():
    os._exit(3)

@pytest.mark.parametrize("number", range(8))
def test_c_has_a_folder_of_its_process(number, tmp_path):
    assert tmp_path.parent.name == "popen-" + os.environ["PYTEST_XDIST_WORKER"]

def test_d_warns():
    warnings.warn("careful")

def test_e_skips():
    pytest.skip("not here")
"""


@pytest.mark.parametrize("plugins", [("-p", "tests.forked_workers"), ()], ids=["forked", "of xdist"])
def test_what_happened_to_each_test_is_told(tmp_path: Path, plugins: tuple[str, ...]) -> None:
    """A failure with what it printed, a crash and what comes after it, a warning, an error of collecting."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_bad.py").write_text("import nothing_of_that_name")
    options = ["-n2", "--dist=worksteal", "-p", "xdist.plugin", *plugins, "--rootdir", str(tmp_path), "-c", os.devnull]
    ran = _run(tmp_path, options)
    while not plugins and "INTERNALERROR" in ran.stdout:  # xdist by itself may send to one that has just crashed
        ran = _run(tmp_path, options)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "2 failed, 9 passed, 1 skipped, 1 warning, 1 error" in ran.stdout
    for told in ["stdout call ---", "\nto stdout\n", "stderr call ---", "\nto stderr", "UserWarning: careful"]:
        assert told in ran.stdout
    assert "crashed while running 'test_it.py::test_b_crashes'" in ran.stdout
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in ran.stdout
    assert {path.read_text() for path in tmp_path.glob("ended-*")} == {f"{bool(plugins)} True"}


def _run(folder: Path, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder in two processes."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "--basetemp", str(folder / "temporary"), *options, str(folder)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name}
        | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
