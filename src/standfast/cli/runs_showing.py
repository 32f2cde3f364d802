"""Runs and their histories as people and programs read them: values as JSON, without secrets, and of bounded length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import click
import msgspec
from msgspec.structs import asdict

from standfast.clock import MICROSECONDS
from standfast.locks.explaining.explanation import length, moment, one_line
from standfast.masking import MASK, mask_text

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.workflows.operating.information import HistoryEntry, RunInfo
    from standfast.workflows.storing.failures import Failure

LONGEST: Final = 300
"""How many characters of a value are shown to people; programs get all."""

COLOURS: Final = {
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "quarantined": "red",
    "cancelled": "yellow",
    "suspended": "blue",
}


def masked(value: object) -> object:
    """Return JSON-shaped data with what looks like a secret in it replaced."""
    match value:
        case str():
            return mask_text(value)
        case list() | tuple():
            return [masked(item) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {key: MASK if _is_secret(key) else masked(item) for key, item in items}
        case _:
            return value


def _is_secret(name: str) -> bool:
    return mask_text(f"{name}=x").endswith(f"={MASK}")


def shown(value: object, longest: int = LONGEST) -> str:
    """Return a value as one line of JSON, not too long."""
    text = one_line(msgspec.json.encode(masked(value)).decode())
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters; --json shows all)"


def as_data(told: RunInfo | HistoryEntry) -> dict[str, Any]:
    """Return how a run is, or a line of its history, as JSON-shaped data."""
    return {name: masked(value) for name, value in asdict(told).items()} | {"failure": failure_data(told.failure)}


def failure_data(failure: Failure | None) -> dict[str, Any] | None:
    """Return what was raised as JSON-shaped data."""
    if failure is None:
        return None
    told = {"type": failure.type, "message": mask_text(failure.message), "trace": failure.trace}
    return told | {"cause": failure_data(failure.cause)}


def status_words(run: RunInfo) -> str:
    """Return how a run is in a few words, what it waits for included."""
    words = run.status.replace("_", " ")
    if run.has_ended or not run.waits_for:
        return words if run.cancel is None else f"{words}: {one_line(mask_text(run.cancel))}"
    waits = f"{words}, waits for {one_line(mask_text(run.waits_for))}"
    return waits if run.until is None else f"{waits}, until {moment(run.until)} at the latest"


def coloured(status: str, words: str) -> str:
    """Return words in the colour of a status."""
    return click.style(words, fg=COLOURS.get(status))


def history_line(entry: HistoryEntry, since: Instant) -> str:
    """Return one line of a history: when after the start, what, and what came of it."""
    when = length(max(0.0, (entry.at - since) / MICROSECONDS))
    line = f"{entry.number:>5}  +{when:<9} {entry.kind:<10} {one_line(entry.id)}"
    if entry.failure is not None:
        return f"{line}  raised {one_line(entry.failure.type)}: {one_line(mask_text(entry.failure.message))}"
    if entry.until is not None:
        line = f"{line}  until {moment(entry.until)}"
    return line if entry.value is None else f"{line}  {shown(entry.value, 120)}"
