"""What the tool wrote into the blocking classes is what the async classes say now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "generate_blocking.py"


def test_the_generated_methods_are_up_to_date() -> None:
    """A method that an async class has got since, or whose signature has changed, is mirrored."""
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
