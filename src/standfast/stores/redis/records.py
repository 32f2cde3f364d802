"""Records as they lie in a hash of Redis, and choices as the scripts take and answer them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import Append, Check, Count, Delete, MoveFirst, Present, Put, Record, Stamped
from standfast.stores.remote.choices import CreateOrAppend
from standfast.stores.remote.server import ChoiceRefused, ChoiceWritten
from standfast.stores.remote.subscriptions import LONGEST_MOVED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from standfast.stores.protocol import Alternative, AlternativeChange, Empty
    from standfast.stores.redis.scripts import Argument
    from standfast.stores.remote.choices import MoveOrDelete


# --- records as they lie in a hash: version and expiry, 16 digits each, and the value ------------------------------

FIELD: Final = 16

NEVER: Final = b"9" * FIELD
"""The expiry of a record that has none: later than every instant."""


def digits(number: int) -> bytes:
    """Return a version as the scripts compare it."""
    return b"%016d" % number


def expiry(instant: Instant | None) -> bytes:
    """Return an expiry as it is stored."""
    return NEVER if instant is None else b"%016d" % instant


def unpack(key: RecordKey, raw: bytes | None, at: Instant) -> Record | None:
    """Return the record that lies at ``key``, if it is there and alive."""
    if raw is None:
        return None
    expires = raw[16:32]
    if expires == NEVER:
        return Record(key, raw[32:], int(raw[:16]))
    expires_at = Instant(int(expires))
    return None if expires_at <= at else Record(key, raw[32:], int(raw[:16]), expires_at)


# --- alternatives as the script takes them, and what it shows of them ----------------------------------------------


def choice_fields(change: AlternativeChange) -> tuple[Argument, ...]:  # noqa: PLR0911 -- a line for each kind
    """Return the six fields of a change."""
    # By exact types: isinstance asks the metaclass of a struct, which takes several times as long.
    if type(change) is Put or type(change) is Stamped:
        kind = "p" if type(change) is Put else "s"
        return kind, change.key, digits(change.expected), change.value, expiry(change.expires_at), ""
    if type(change) is Delete or type(change) is Check:
        return "d" if type(change) is Delete else "c", change.key, digits(change.expected), "", "", ""
    if type(change) is MoveFirst:
        return "m", change.to, digits(change.expected), change.inboxes, "", change.prefix
    if type(change) is Append:
        return "A" if change.stamped else "a", change.prefix, "", change.value, "", change.suffix
    if type(change) is Present:
        return "r", change.key, "", "", "", ""
    if type(change) is Count:
        return "n", change.prefix, digits(change.least), "" if change.most is None else digits(change.most), "", ""
    return "e", cast("Empty", change).prefix, "", "", "", ""


def drawn(digits: bytes) -> tuple[int, ...]:
    """Return what was counted for choices: of each its version, or 0, and which alternative it was, from 0, or -1."""
    numbers = [int(digits[start : start + FIELD]) for start in range(0, len(digits), FIELD)]
    return tuple([each for pair in zip(numbers[::2], numbers[1::2], strict=True) for each in (pair[0], pair[1] - 1)])


def choice_answers(flat: Sequence[Any], at: Instant) -> tuple[ChoiceWritten | ChoiceRefused, ...]:
    """Return what became of each choice; they are told one after the other, see the script."""
    answers: list[ChoiceWritten | ChoiceRefused] = []
    told = iter(flat)
    for index in told:
        if index < 0:
            answers.append(ChoiceRefused(at, *_shown(_taken(told), _taken(told), at)))
            continue
        version, present, moved_from, moved_raw = next(told), _taken(told), next(told), next(told)
        moved = unpack(RecordKey.from_encoded(moved_from), moved_raw, at) if moved_from else None
        records = _shown(present, [], at)[0] if present else {}
        answers.append(ChoiceWritten(at, index, version, records, moved))
    return tuple(answers)


def _taken(told: Iterator[Any]) -> list[bytes | None]:
    """Take a list after its length."""
    length: int = next(told)
    return list(islice(told, length)) if length else []


def _shown(
    keys: list[bytes | None], below: list[bytes | None], at: Instant
) -> tuple[dict[RecordKey, Record], dict[RecordKey, Record]]:
    """Return the live records at keys, and the first ones below prefixes."""
    records: dict[RecordKey, Record] = {}
    firsts: dict[RecordKey, Record] = {}
    for raw_key, raw in zip(keys[::2], keys[1::2], strict=True):
        key = RecordKey.from_encoded(raw_key or b"")
        if (record := unpack(key, raw, at)) is not None:
            records[key] = record
    for prefix, raw_key, raw in zip(below[::3], below[1::3], below[2::3], strict=True):
        if (record := unpack(RecordKey.from_encoded(raw_key or b""), raw, at)) is not None:
            firsts[RecordKey.from_encoded(prefix or b"")] = record
    return records, firsts


# --- the choices that have scripts of their own ---------------------------------------------------------------------


def quick_fields(choice: CreateOrAppend | MoveOrDelete, origin: str, channel: bytes) -> tuple[Argument, ...]:
    """Return what the script of a choice takes of it."""
    if isinstance(choice, CreateOrAppend):
        return choice
    to, version, other, other_version, prefix, inboxes = choice
    return to, digits(version), other, digits(other_version), prefix, inboxes, origin, channel, LONGEST_MOVED


def quick_answer(choice: Sequence[Alternative], answer: list[Any]) -> ChoiceWritten:
    """Return what the script of a choice has done. Records that it shows never expire."""
    _, at, version, _, shown = answer
    index = int(shown[:1])
    present: dict[RecordKey, Record] = {}
    moved = None
    if len(shown) > 1:
        guard, start = choice[index].changes[0], 1
        if type(guard) is Present:
            present = {guard.key: Record(guard.key, shown[33:], int(shown[1:17]))}
        else:
            start += FIELD + int(shown[1:17])
            key = RecordKey.from_encoded(shown[17:start])
            moved = Record(key, shown[start + 32 :], int(shown[start : start + 16]))
    return ChoiceWritten(Instant(at), index, version, present, moved)
