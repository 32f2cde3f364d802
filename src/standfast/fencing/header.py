"""A fence on its way through HTTP: ``Standfast-Fence: invoice-7;42``."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

from standfast.errors import InvalidFenceGuardError, InvalidFenceHeaderError
from standfast.fencing._checks import MAX_FENCE, MAX_RESOURCE, check_fence, check_resource

FENCE_HEADER: Final = "Standfast-Fence"
"""The name of the header."""

_MAX_TEXT: Final = 12 * MAX_RESOURCE + 20  # a character takes up to four bytes, each written as %XX
_VALUE: Final = re.compile(r"([A-Za-z0-9._~%-]+);([1-9][0-9]{0,15})", re.ASCII)


class FenceHeader(Struct, frozen=True, gc=False):
    """What a fence header says: which resource is to be written, and with which fence."""

    resource: str
    fence: int


def fence_header(resource: str, fence: int) -> dict[str, str]:
    """Return the header that carries a fence to the service that keeps a resource.

    >>> fence_header("invoice 7", 42)
    {'Standfast-Fence': 'invoice%207;42'}

    Raises:
        InvalidFenceError: The fence is no whole number from 1 to 2**53 - 1.
        InvalidFenceGuardError: The name of the resource is empty, too long or not printable.
    """
    return {FENCE_HEADER: f"{quote(check_resource(resource), safe='')};{check_fence(fence)}"}


def parse_fence_header(value: str | None) -> FenceHeader:
    """Read the header of a request; pass None if it has none.

    >>> parse_fence_header("invoice%207;42")
    FenceHeader(resource='invoice 7', fence=42)

    Raises:
        InvalidFenceHeaderError: It is missing, too long, or not what :func:`fence_header` writes.
    """
    if value is None:
        raise InvalidFenceHeaderError("is missing")
    if len(value) > _MAX_TEXT:
        raise InvalidFenceHeaderError(f"is {len(value):,} characters long")
    match = _VALUE.fullmatch(value.strip(" \t"))
    if match is None:
        raise InvalidFenceHeaderError("is not a resource, a semicolon and a number")
    fence = int(match[2])
    if fence > MAX_FENCE:
        raise InvalidFenceHeaderError("has a number above 2**53 - 1")
    return FenceHeader(_resource(match[1]), fence)


def _resource(text: str) -> str:
    """Undo the escapes; what another spelling could stand for is refused."""
    try:
        resource = check_resource(unquote(text, errors="strict"))
    except (UnicodeDecodeError, InvalidFenceGuardError):
        raise InvalidFenceHeaderError("names no resource in printable text") from None
    if quote(resource, safe="") != text:
        raise InvalidFenceHeaderError("has a resource that is escaped in another way")
    return resource
