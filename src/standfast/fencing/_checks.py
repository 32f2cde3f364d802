"""What can be a fence, and what it can guard."""

from __future__ import annotations

from typing import Final

from standfast.errors import InvalidFenceError, InvalidFenceGuardError

MAX_FENCE: Final = 2**53 - 1
"""The largest fence: every store, JSON, Lua and SQL keep it exact."""

MAX_RESOURCE: Final = 200
"""The longest name of a resource, in characters."""


def check_fence(fence: int) -> int:
    """Return a fence; refuse what cannot be one, above all None and 0 from code that never held anything."""
    if type(fence) is not int:
        raise InvalidFenceError(f"a {type(fence).__name__}", "it must be a whole number")
    if not 1 <= fence <= MAX_FENCE:
        shown = str(fence) if abs(fence) <= MAX_FENCE else f"a number of {fence.bit_length()} bits"
        raise InvalidFenceError(shown, "it must lie between 1 and 2**53 - 1")
    return fence


def check_resource(resource: str) -> str:
    """Return the name of what is guarded; refuse what cannot be one."""
    problem = f"it must be 1 to {MAX_RESOURCE} printable characters"
    if type(resource) is not str:
        raise InvalidFenceGuardError("resource", f"a {type(resource).__name__}", problem)
    if not 0 < len(resource) <= MAX_RESOURCE or not resource.isprintable():
        raise InvalidFenceGuardError("resource", ascii(resource[:40]), problem)
    return resource
