"""What some tests need and not every machine has: a tool, a server."""

from __future__ import annotations

import os

import pytest


def require(found: object, what: str) -> None:
    """Skip the test, saying what is missing; fail it where ``HOLDFAST_REQUIRE_SERVICES=1`` demands that all is there.

    require(shutil.which("git"), "git")
    """
    if found:
        return
    if os.environ.get("HOLDFAST_REQUIRE_SERVICES", "0") not in {"", "0"}:
        pytest.fail(f"{what} is missing, and HOLDFAST_REQUIRE_SERVICES is set")
    pytest.skip(f"{what} is missing on this machine")
