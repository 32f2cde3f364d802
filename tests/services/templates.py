"""Data folders that take long to make are made once and copied."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.services.identity import hand_over
from tests.services.places import cache, locked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def copy_template(name: str, folder: Path, build: Callable[[Path], None]) -> None:
    """Fill a folder with a copy of the named template, which is built first where there is none."""
    made = cache() / "templates" / name
    with locked(cache() / "templates" / f"{name}.lock"):
        if not made.exists():
            half = made.with_suffix(".new")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            hand_over(half)
            build(half)
            half.rename(made)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    hand_over(folder)
