"""What the tests of engines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.ids import new_id
from tests.unit.workflows.engines import BROKEN, DONE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store that several engines can share."""
    DONE.clear()
    BROKEN.clear()
    return f"memory://{new_id()}" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
