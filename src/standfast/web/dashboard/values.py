"""Values on pages: bounded, without what looks like a secret, and put back together after a user has edited them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

import msgspec

from standfast.clock import MICROSECONDS, Instant, later
from standfast.durations import seconds
from standfast.errors import InvalidArgumentError
from standfast.redaction import mask_data, mask_text, mask_whole
from standfast.web.dashboard.access import PageError

if TYPE_CHECKING:
    from standfast.workflows.queries import RunInfo

MOST_SHOWN: Final = 20_000
"""How many characters of a value are shown."""


def shown(value: object) -> str:
    """Return a value as JSON on several lines, bounded, without what looks like a secret in it."""
    text = pretty(masked(value))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}\n... ({len(text):,} characters)"


def pretty(value: object) -> str:
    """Return a value as JSON on several lines."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def masked(value: object) -> object:
    """Return JSON-shaped data without what looks like a secret in it; a text that is too long to be shown is cut."""

    def mask(text: str) -> str:
        return mask_whole(text) if len(text) <= MOST_SHOWN else f"{mask_whole(text[:MOST_SHOWN])}..."

    return mask_data(value, mask)


def unmasked(edited: object, original: object) -> object:
    """Return what a user has edited, with what was masked in it as it was, where it was left masked."""
    if edited == masked(original):
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        before = cast("dict[str, object]", original)
        after = cast("dict[str, object]", edited)
        whole = cast("dict[str, object]", masked(before))
        return {
            key: before[key] if key in before and item == whole[key] else unmasked(item, before.get(key))
            for key, item in after.items()
        }
    if isinstance(edited, list) and isinstance(original, list | tuple):
        old = [*cast("list[object]", original)]
        new = cast("list[object]", edited)
        return [unmasked(item, old[place] if place < len(old) else None) for place, item in enumerate(new)]
    return edited  # pyright: ignore[reportUnknownVariableType] -- whatever JSON it is


def json_in(text: str, what: str) -> object:
    """Return what a user has typed as JSON."""
    try:
        found: object = msgspec.json.decode(text)
    except msgspec.DecodeError as problem:
        advice = f"Text needs quotation marks. {problem}."
        raise PageError(400, "Nothing was done", f"{what} is no JSON.", advice) from problem
    return found


def failure_of(found: RunInfo) -> list[tuple[str, str, list[str]]]:
    """Return what a run raised, and what caused that: type, message, and the user's frames."""
    causes: list[tuple[str, str, list[str]]] = []
    failure = found.failure
    while failure is not None and len(causes) < 5:  # noqa: PLR2004 -- causes that are shown
        causes.append((failure.type, mask_text(failure.message), failure.trace.splitlines()))
        failure = failure.cause
    return causes


def number_in(text: str, otherwise: int) -> int:
    """Return a count from an address; something else if there is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else otherwise  # noqa: PLR2004 -- as many digits as a count may have


def moment_in(text: str, what: str, now: int) -> datetime | None:
    """Return the moment that a user has typed: an instant in UTC, or how long ago; None if nothing.

    Raises:
        InvalidArgumentError: It is neither.
    """
    text = text.strip()
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            ago = later(Instant(now), -seconds(text, what=what))
        except (InvalidArgumentError, ValueError, TypeError) as problem:
            raise InvalidArgumentError(what, "say '2 hours' ago, or 2026-11-17 08:30 (UTC)", text[:40]) from problem
        return datetime.fromtimestamp(max(0, ago) / MICROSECONDS, UTC)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
