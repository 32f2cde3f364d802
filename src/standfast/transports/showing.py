"""What is known about a request, as JSON for callers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

if TYPE_CHECKING:
    from standfast.flows.request import Explanation, RequestInfo
    from standfast.transports.seam import Handle

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTED: Final = frozenset({"position", "waiting", "attempt"})
"""What says something by being 0."""
_NEXT_WORD: Final = re.compile(r"_([a-z])")


def shown_info(info: RequestInfo) -> dict[str, Any]:
    """Return where a request stands. What has nothing to say is left out."""
    facts = asdict(info)
    facts["explanation"] = None if info.explanation is None else shown_explanation(info.explanation)
    shown = {"requestId": facts.pop("id"), **_shown(facts)}
    return shown | ({"result": info.result} if info.status == "completed" else {})


def shown_explanation(explanation: Explanation) -> dict[str, Any]:
    """Return why a request waits."""
    return _shown(asdict(explanation))


def shown_handle(handle: Handle) -> dict[str, Any]:
    """Return what whoever sent a request is told before it has ended."""
    shown: dict[str, Any] = {"requestId": handle.id, "status": handle.status}
    if handle.position is not None:
        shown["position"] = handle.position
    if handle.explanation is not None:
        shown["explanation"] = shown_explanation(handle.explanation)
    return shown


def as_json(value: object) -> bytes:
    """Return JSON-shaped data, and structs in it, as JSON."""
    return msgspec.json.encode(value)


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in facts.items() if value or (name in _COUNTED and value == 0)}
    return {
        _NEXT_WORD.sub(lambda match: match[1].upper(), name): shown_instant(value) if _is_instant(name) else value
        for name, value in kept.items()
    }


def _is_instant(name: str) -> bool:
    return name.endswith("_at") or name == "since"


def shown_instant(microseconds: int) -> str:
    """Return an instant of store time as people write it."""
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")
