"""The page about growing to a fleet, run on a PostgreSQL server: three workers, one of them killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.fork_server import forked_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "grow-from-one-file-to-a-fleet.md"


@pytest.mark.heavy
def test_the_same_application_runs_on_a_server_with_three_workers(postgresql_url: str, tmp_path: Path) -> None:
    """Word for word what the page says, with nothing changed but where the store is."""
    url = f"{postgresql_url}{'&' if '?' in postgresql_url else '?'}schema=fleet_{os.getpid()}"
    page = forked_run(
        [sys.executable, str(ROOT / "tests" / "docs" / "page.py"), str(PAGE)],
        cwd=tmp_path,
        env={**os.environ, "STANDFAST_FLEET": url, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert page.returncode == 0, page.stdout + page.stderr
