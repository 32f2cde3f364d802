"""Names of parametrized tests that are the same in every process."""

from __future__ import annotations

import re


def shown(value: object) -> str:
    """Return a value's ``repr`` without addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
