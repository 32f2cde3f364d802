"""Run the tools that fetch and prepare servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.services.places import MissingError


def run(
    *command: str, cwd: Path, given: str = "", environment: dict[str, str] | None = None, shown: bool = False
) -> None:
    """Run a command; what it said is in the error if it fails, and on the terminal if it is ``shown``."""
    try:
        said = subprocess.run(
            command, cwd=cwd, input=given, env=environment, text=True, capture_output=not shown, check=False
        )
    except OSError as problem:
        raise MissingError(str(problem)) from problem
    if said.returncode:
        raise MissingError(f"{Path(command[0]).name} failed: {(said.stderr or '').strip() or said.returncode}")
