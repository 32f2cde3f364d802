"""What clients are told about where to get a token: RFC 9728, and the challenges of RFC 6750."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def document(resource: str, issuer: str, scopes: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a protected resource."""
    found: dict[str, Any] = {
        "resource": resource,
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
    }
    return found | ({"scopes_supported": list(scopes)} if scopes else {})


def paths(resource: str) -> tuple[str, ...]:
    """Return where the metadata is served: for the path of the resource, and for each shorter end of it.

    Below a mount the application sees only the end of a path.
    """
    parts = urlsplit(resource).path.rstrip("/").split("/")[1:]
    ends = ["".join(f"/{part}" for part in parts[begin:]) for begin in range(len(parts) + 1)]
    return tuple(f"{WELL_KNOWN}{end}" for end in ends)


def address(resource: str, root: str) -> str:
    """Return the address of the metadata, as a client reaches it: below where the application is mounted."""
    whole = urlsplit(resource)
    path = whole.path.rstrip("/")
    if root and not (f"{path}/".startswith(f"{root}/")):
        root = ""
    return f"{whole.scheme}://{whole.netloc}{root}{WELL_KNOWN}{path.removeprefix(root)}"


def challenge(where: str, scopes: Sequence[str], error: str = "") -> str:
    """Return what ``WWW-Authenticate`` says."""
    said = {"error": error, "scope": " ".join(scopes), "resource_metadata": where}
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in said.items() if value)
