"""A space for blocking code, on a store in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def space() -> Iterator[blocking.Space]:
    """A space that is closed when the test is over."""
    with blocking.open("memory://") as opened:
        yield opened
