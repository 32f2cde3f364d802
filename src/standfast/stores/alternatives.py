"""Alternatives: which of them holds, and what it writes, as pure functions.

Backends that can compute inside their transaction use them there, by way of :mod:`~standfast.stores.fold`. A server
decides by itself; with these functions the client finds out what to answer when no alternative held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from msgspec import Struct

from standfast.keys import RecordKey
from standfast.stores.protocol import (
    ABSENT,
    NUMBER_BYTES,
    Append,
    Choice,
    Conflict,
    Count,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Record,
    Stamped,
    Wake,
    stamped,
)
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.clock import Instant
    from standfast.stores.backend import ChoiceRider
    from standfast.stores.protocol import Alternative, Change

    Get = Callable[[RecordKey], Record | None]
    """Returns the live record at a key."""
    Below = Callable[[RecordKey, int], Sequence[Record]]
    """Returns the first live records that continue a key, up to a number."""


class ChoiceEffect(Struct, frozen=True):
    """What a choice comes to: its answer, the last state of each changed key, and what to notify of."""

    answer: Choice | Conflict
    writes: dict[RecordKey, Record | None] = {}
    wakes: tuple[Wake, ...] = ()


def choose(rider: ChoiceRider, at: Instant, get: Get, below: Below, draw: Callable[[], int]) -> ChoiceEffect:
    """Choose the first alternative that holds at ``at``. ``draw`` is called once, if there is one that writes."""
    looked: dict[tuple[RecordKey, int], Sequence[Record]] = {}

    def below_once(prefix: RecordKey, most: int) -> Sequence[Record]:
        if (prefix, most) not in looked:
            looked[prefix, most] = below(prefix, most)
        return looked[prefix, most]

    lost: dict[RecordKey, Record | None] = {}
    for index, alternative in enumerate(rider.alternatives):
        failed = failed_guards(alternative, at, get, below_once)
        if failed is None:
            return done(index, alternative, at, get, below_once, draw)
        lost.update(failed)
    return ChoiceEffect(Conflict(at, lost))


def failed_guards(  # noqa: C901, PLR0912 -- one loop on a hot path
    alternative: Alternative, at: Instant, get: Get, below: Below
) -> dict[RecordKey, Record | None] | None:
    """Return what is there instead, where guards of an alternative fail; None if it holds."""
    lost: dict[RecordKey, Record | None] = {}
    for change in alternative.changes:  # by exact types: isinstance asks the metaclass of a struct, which takes longer
        if type(change) is Append:
            continue
        if type(change) is Present:
            if get(change.key) is None:
                lost[change.key] = None
        elif type(change) is Empty:
            for found in below(change.prefix, 1):
                lost[found.key] = found
        elif type(change) is Count:
            counted = below(change.prefix, change.enough)
            if not change.holds(len(counted)):
                lost.update({each.key: each for each in counted})
                if not counted:
                    lost[change.prefix] = None
        elif type(change) is MoveFirst:
            record = get(change.to)
            if (ABSENT if record is None else record.version) != change.expected:
                lost[change.to] = record
            first = below(change.prefix, 1)
            if not first:
                lost[change.prefix] = None
            elif not suffix_of(first[0].key, change.prefix):
                lost[first[0].key] = first[0]
        else:
            guarded: Change | Stamped = change  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] -- none else is left, and a cast is a call
            record = get(guarded.key)
            if (ABSENT if record is None else record.version) != guarded.expected:
                lost[guarded.key] = record
    is_always = alternative.after is None and alternative.before is None
    return None if not lost and (is_always or in_window(at, alternative.after, alternative.before)) else lost


def suffix_of(key: RecordKey, prefix: RecordKey) -> bytes:
    """Return what follows the number in the key of an appended record."""
    return key[len(prefix) + NUMBER_BYTES :]


def done(
    index: int, alternative: Alternative, at: Instant, get: Get, below: Below, draw: Callable[[], int]
) -> ChoiceEffect:
    """Return what an alternative that holds comes to."""
    version = ABSENT if _WRITING.isdisjoint(map(type, alternative.changes)) else draw()
    writes: dict[RecordKey, Record | None] = {}
    versions: dict[RecordKey, int] = {}
    present: dict[RecordKey, Record] = {}
    wakes = alternative.wake
    appended = source = moved = None
    for change in alternative.changes:
        if type(change) is Put:
            writes[change.key] = Record(change.key, change.value, version, change.expires_at)
            versions[change.key] = version
        elif type(change) is Stamped:
            writes[change.key] = Record(change.key, stamped(at, change.value), version, change.expires_at)
            versions[change.key] = version
        elif type(change) is Delete:
            writes[change.key] = None
        elif type(change) is Append:
            appended = change.key_of(version)
            value = stamped(at, change.value) if change.stamped else change.value
            writes[appended] = Record(appended, value, version)
            versions[appended] = version
        elif type(change) is MoveFirst and (firsts := below(change.prefix, 1)):
            source = firsts[0]
            writes[source.key] = None
            writes[change.to] = moved = Record(change.to, stamped(at, source.value), version)
            versions[change.to] = version
            wakes = (*wakes, moved_wake(change, source.key, moved))
        elif type(change) is Present and (record := get(change.key)) is not None:
            present[change.key] = record
    chosen = Choice(at, index, versions, appended, moved, None if source is None else source.key, present)
    return ChoiceEffect(chosen, writes, wakes)


_WRITING = frozenset({Put, Stamped, Delete, Append, MoveFirst})
_OF_PREFIXES = frozenset({Empty, Count, Append})


def moved_wake(change: MoveFirst, source: RecordKey, moved: Record) -> Wake:
    """Return what the inbox of a record is notified of when it was moved."""
    inbox = RecordKey.from_encoded(change.inboxes + suffix_of(source, change.prefix))
    return Wake(inbox, change.to, moved)


def keys_in(alternatives: Iterable[Alternative]) -> list[RecordKey]:
    """Return the keys that alternatives compare or write, without those below prefixes."""
    keys: list[RecordKey] = []
    for alternative in alternatives:
        for change in alternative.changes:
            if type(change) is MoveFirst:
                keys.append(change.to)
            elif type(change) not in _OF_PREFIXES:
                named: Change | Stamped | Present = change  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] -- none else is left, and a cast is a call
                keys.append(named.key)
    return keys


def changed_in(alternative: Alternative) -> list[RecordKey]:
    """Return the keys that an alternative writes or deletes; for those that are not known before, their prefix."""
    changed: list[RecordKey] = []
    for change in alternative.changes:
        if type(change) is Put or type(change) is Stamped or type(change) is Delete:
            changed.append(change.key)
        elif type(change) is Append:
            changed.append(change.prefix)
        elif type(change) is MoveFirst:
            changed += (change.to, change.prefix)
    return changed


def names_in(alternative: Alternative) -> list[RecordKey]:
    """Return every key and prefix that an alternative names."""
    names: list[RecordKey] = []
    for change in alternative.changes:
        if type(change) is MoveFirst:
            names += (change.to, change.prefix, change.inboxes)
        elif type(change) is Empty or type(change) is Append or type(change) is Count:
            names.append(change.prefix)
        else:
            names.append(cast("Change | Stamped | Present", change).key)
    return names


def settled(choice: Sequence[Alternative], index: int, at: Instant, version: int) -> ChoiceEffect:
    """Return what is known of a choice whose answer got lost: which alternative it was, and the version drawn."""
    alternative = choice[index]
    versions: dict[RecordKey, int] = {}
    appended = None
    for change in alternative.changes:
        if isinstance(change, (Put, Stamped)):
            versions[change.key] = version
        elif isinstance(change, MoveFirst):
            versions[change.to] = version
        elif isinstance(change, Append):
            appended = change.key_of(version)
            versions[appended] = version
    answer = Choice(at, index, versions, appended, is_settled=True)
    gone = [change.key for change in alternative.changes if isinstance(change, Delete)]
    return ChoiceEffect(answer, {**dict.fromkeys(versions), **dict.fromkeys(gone)}, alternative.wake)
