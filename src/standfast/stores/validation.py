"""The rules of the store contract, checked once for every backend before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from standfast.clock import Instant
from standfast.codec import MAX_BYTES
from standfast.errors import ArgumentTypeError, InvalidChangeError
from standfast.keys import MAX_KEY_BYTES, RecordKey
from standfast.stores.protocol import (
    ABSENT,
    MAX_VERSION,
    NUMBER_BYTES,
    STAMP_BYTES,
    Alternative,
    Append,
    Capabilities,
    Change,
    Check,
    Count,
    Decision,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
    Wake,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.stores.protocol import AlternativeChange, Snapshot


MAX_SCAN: Final = 1_000
"""The most records one page of a scan may hold."""

A_FEW: Final = 24
"""How many changes a commit has, at most, that is looked at in one pass."""

MAX_INSTANT: Final = Instant(MAX_VERSION)
"""The last instant, in the year 2255: like versions, instants stay exact in JSON, Lua and JavaScript."""


def check_key(key: RecordKey) -> None:
    """Refuse anything but a record key of a size that every store takes."""
    if type(key) is not RecordKey:
        raise ArgumentTypeError("a RecordKey (made by space.key(...))", type(key).__name__)
    if not key or len(key) > MAX_KEY_BYTES:
        raise InvalidChangeError(f"a record key has 1 to {MAX_KEY_BYTES:,} bytes, this one has {len(key):,}")


def check_commit(changes: Sequence[Change], wake: Sequence[Wake], limits: Capabilities) -> None:
    """Refuse a commit that breaks a rule: too many changes, a key twice, two namespaces, a bad change."""
    for change in changes:
        if not is_plain_put(change, limits) and not _is_plain_guard(change):
            _check_change(change, limits)
    if len(changes) == 1 and not wake:
        return
    if not changes:
        raise InvalidChangeError("a commit needs at least one change")
    if len(changes) > limits.max_changes:
        raise InvalidChangeError(f"a commit has at most {limits.max_changes} changes, this one has {len(changes)}")
    if len(changes) * limits.max_value_bytes > limits.max_commit_bytes:
        total = sum([len(change.value) for change in changes if type(change) is Put])
        if total > limits.max_commit_bytes:
            raise InvalidChangeError(
                f"the values of a commit have at most {limits.max_commit_bytes:,} bytes together, these have {total:,};"
                " write them in several commits"
            )
    keys = [change.key for change in changes]
    if len({*keys}) != len(keys):
        raise InvalidChangeError("each key may appear once in a commit")
    if wake:
        _check_wakes(wake)
        keys += [each.to for each in wake]
    check_one_namespace(keys)


def takes_a_few(limits: Capabilities) -> bool:
    """Return True if a store takes a few changes in one commit, however large the records are that we encode."""
    room = A_FEW * limits.max_value_bytes
    return limits.max_changes >= A_FEW and limits.max_value_bytes >= MAX_BYTES and limits.max_commit_bytes >= room


def is_plain(changes: tuple[Change, ...], limits: Capabilities) -> bool:  # noqa: C901, PLR0911 -- one pass, on the hottest path
    """Return True if a commit has a few changes none of which needs a closer look: :func:`check_commit` takes it.

    Most commits are like that: they are asked this first, in one pass without a call for each change.
    """
    if not 0 < len(changes) <= A_FEW or len(changes) > limits.max_changes:
        return False
    most, namespace = limits.max_value_bytes, b""
    if len(changes) * most > limits.max_commit_bytes:
        return False
    keys: set[RecordKey] = set()
    for change in changes:
        if type(change) is Put:
            least = ABSENT
            if type(change.value) is not bytes or len(change.value) > most or change.expires_at is not None:
                return False
        elif type(change) is Check or type(change) is Delete:
            least = ABSENT + 1
        else:
            return False
        key = change.key
        if type(key) is not RecordKey or not 0 < len(key) <= MAX_KEY_BYTES:
            return False
        if type(change.expected) is not int or not least <= change.expected <= MAX_VERSION:
            return False
        if not namespace:
            namespace = key.namespace
        if not key.startswith(namespace):
            return False
        keys.add(key)
    return len(keys) == len(changes)


def is_plain_put(change: Change, limits: Capabilities) -> bool:
    """Return True, in one expression on the hottest path, if a change needs no closer look."""
    return (
        type(change) is Put
        and type(change.key) is RecordKey
        and 0 < len(change.key) <= MAX_KEY_BYTES
        and type(change.value) is bytes
        and len(change.value) <= limits.max_value_bytes
        and type(change.expected) is int
        and ABSENT <= change.expected <= MAX_VERSION
        and change.expires_at is None
    )


def _is_plain_guard(change: Change) -> bool:
    """Return True if a change is a Check or a Delete that needs no closer look."""
    return (
        (type(change) is Check or type(change) is Delete)
        and type(change.key) is RecordKey
        and 0 < len(change.key) <= MAX_KEY_BYTES
        and type(change.expected) is int
        and ABSENT < change.expected <= MAX_VERSION
    )


def _is_plain_value(change: Stamped, most: int) -> bool:
    return (
        type(change.key) is RecordKey
        and 0 < len(change.key) <= MAX_KEY_BYTES
        and type(change.value) is bytes
        and len(change.value) <= most
        and type(change.expected) is int
        and ABSENT <= change.expected <= MAX_VERSION
        and change.expires_at is None
    )


# --- alternatives --------------------------------------------------------------------------------------------------

MOST_ALTERNATIVES: Final = 24


def check_alternatives(alternatives: Sequence[Alternative], limits: Capabilities) -> None:
    """Refuse alternatives of which one breaks a rule."""
    if not 1 <= len(alternatives) <= MOST_ALTERNATIVES:
        raise InvalidChangeError(f"choose takes 1 to {MOST_ALTERNATIVES} alternatives, got {len(alternatives)}")
    namespace = b""
    for alternative in alternatives:
        if type(alternative) is not Alternative:
            raise InvalidChangeError(f"choose takes Alternatives, got {type(alternative).__name__}")
        named = _check_alternative(alternative, limits)
        namespace = namespace or named[0].namespace
        for key in named:
            if not key.startswith(namespace):
                check_one_namespace([RecordKey.from_encoded(namespace), key])


def _check_alternative(alternative: Alternative, limits: Capabilities) -> list[RecordKey]:  # noqa: C901 -- one loop on a hot path
    """Refuse an alternative that breaks a rule; return all keys that it names."""
    changes = alternative.changes
    if type(changes) is not tuple or not 1 <= len(changes) <= limits.max_changes:
        raise InvalidChangeError(f"an alternative is a tuple of 1 to {limits.max_changes} changes")
    keys: list[RecordKey] = []
    prefixes: list[RecordKey] = []
    others: list[RecordKey] = []
    counted: list[RecordKey] = []
    for change in changes:  # by exact types: isinstance asks the metaclass of a struct, which takes longer
        if type(change) is Empty:
            prefixes.append(change.prefix)
        elif type(change) is Count:
            _check_count(change, limits)
            counted.append(change.prefix)
        elif type(change) is MoveFirst:
            prefixes.append(change.prefix)
            others.append(change.inboxes)
            keys.append(change.to)
            _check_expected(change.to, change.expected)
        elif type(change) is Append:
            prefixes.append(change.prefix)
            _check_append(change, limits)
        else:
            key = _checked_at_key(change, limits)
            keys.append(key)
    if alternative.wake:
        _check_wakes(alternative.wake)
        others += [wake.to for wake in alternative.wake]
    for key in (*prefixes, *counted):
        check_key(key)
    for key in others:
        check_key(key)
    if alternative.after is not None or alternative.before is not None:
        check_window(alternative.after, alternative.before)
    if prefixes or len(changes) > 1:
        _check_apart(keys, prefixes, counted)
    return keys + prefixes + others + counted


def _check_count(change: Count, limits: Capabilities) -> None:
    least, most = change.least, change.most
    if type(least) is not int or (most is not None and type(most) is not int):
        raise InvalidChangeError(
            f"least and most of {change.prefix} are numbers of records, got {least!r} and {most!r}"
        )
    if not 0 <= least <= (limits.max_changes if most is None else most) <= limits.max_changes:
        raise InvalidChangeError(
            f"count from 0 to {limits.max_changes} records below {change.prefix}, got {least} to {most}"
        )


def _check_apart(keys: Sequence[RecordKey], prefixes: Sequence[RecordKey], counted: Sequence[RecordKey]) -> None:
    named = [*prefixes, *counted] if counted else prefixes
    if len({*keys}) != len(keys) or (len(named) > 1 and len({*named}) != len(named)):
        raise InvalidChangeError("each key and each prefix may appear once in an alternative")
    for prefix in prefixes:
        for key in keys:
            if key.startswith(prefix):
                raise InvalidChangeError("no key of an alternative may lie below a prefix that it names")


def _checked_at_key(change: AlternativeChange, limits: Capabilities) -> RecordKey:
    """Refuse a change of one key that breaks a rule; return that key."""
    if type(change) is Present:
        check_key(change.key)
        return change.key
    if type(change) is Stamped:
        if not _is_plain_value(change, limits.max_value_bytes - STAMP_BYTES):
            _check_change(Put(change.key, change.value, change.expected, change.expires_at), limits, spare=STAMP_BYTES)
        return change.key
    known = cast("Change", change)
    if not is_plain_put(known, limits):
        _check_change(known, limits)
    return known.key


def _check_append(append: Append, limits: Capabilities) -> None:
    spare = STAMP_BYTES * (2 if append.stamped else 1)  # it may be moved, and is stamped then
    if type(append.value) is not bytes or len(append.value) + spare > limits.max_value_bytes:
        raise InvalidChangeError(
            f"the value below {append.prefix} must be bytes, at most {limits.max_value_bytes - spare:,} of them"
        )
    if not isinstance(append.suffix, bytes) or append.suffix[-2:] not in (b"", b"\x00\x01"):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidChangeError("a suffix is made of encoded parts, as a RecordKey is")
    if len(append.prefix) + NUMBER_BYTES + len(append.suffix) > MAX_KEY_BYTES:
        raise InvalidChangeError(f"a record key has at most {MAX_KEY_BYTES:,} bytes, number and suffix included")


def check_window(after: Instant | None, before: Instant | None) -> None:
    """Refuse a time window that is not made of instants or that no instant can be in."""
    if after is None and before is None:
        return
    for edge in (after, before):
        if edge is not None and not _is_instant(edge):
            raise InvalidChangeError(f"a time window is made of instants (microseconds), got {edge!r}")
    if after is not None and before is not None and after >= before:
        raise InvalidChangeError("the time window is empty: after must be earlier than before")


def _is_instant(value: Instant) -> bool:
    return type(value) is int and 0 <= value <= MAX_INSTANT


def _check_wakes(wakes: Sequence[Wake]) -> None:
    for wake in wakes:
        if type(wake) is not Wake:
            raise InvalidChangeError(f"a wake is a Wake, got {type(wake).__name__}")
        check_key(wake.to)
        if wake.about is not None:
            check_key(wake.about)
        for key in wake.shows:
            check_key(key)
        if wake.moved is not None:
            raise InvalidChangeError("moved of a Wake is set by the store; leave it out")


def check_one_namespace(keys: Iterable[RecordKey]) -> None:
    """Refuse keys of two namespaces: a store may keep those on different servers."""
    namespace, first = b"", None
    for key in keys:
        if first is None:
            namespace, first = key.namespace, key
        if not key.startswith(namespace):
            raise InvalidChangeError(f"{first} and {key} lie in different namespaces; use one commit for each")


def _check_change(change: Change, limits: Capabilities, spare: int = 0) -> None:
    if type(change) not in (Put, Delete, Check):
        raise InvalidChangeError(f"a change is a Put, Delete or Check, got {type(change).__name__}")
    key = change.key
    _check_expected(key, change.expected)
    if not isinstance(change, Put):
        if change.expected == ABSENT:
            raise InvalidChangeError(
                f"{type(change).__name__} of {key} expects absence, which cannot be guarded; put a marker instead"
            )
        return
    most = limits.max_value_bytes - spare
    if type(change.value) is not bytes:
        raise InvalidChangeError(f"the value of {key} must be bytes, got {type(change.value).__name__}")
    if len(change.value) > most:
        raise InvalidChangeError(f"the value of {key} has {len(change.value):,} bytes, at most {most:,} are allowed")
    if change.expires_at is not None and not _is_instant(change.expires_at):
        raise InvalidChangeError(f"expires_at of {key} must be an instant (microseconds), got {change.expires_at!r}")


def _check_expected(key: RecordKey, expected: int) -> None:
    check_key(key)
    if type(expected) is not int or not ABSENT <= expected <= MAX_VERSION:
        raise InvalidChangeError(f"expected is a version of {key}, got {expected!r}")


def check_read(keys: Sequence[RecordKey], limits: Capabilities) -> None:
    """Refuse a read or update of no keys, too many keys, or keys of two namespaces."""
    if not keys or len(keys) > limits.max_changes:
        raise InvalidChangeError(f"name 1 to {limits.max_changes} keys at a time, got {len(keys)}")
    for key in keys:
        check_key(key)
    check_one_namespace(keys)


def check_scan(start: RecordKey, end: RecordKey, limit: int) -> None:
    """Refuse a scan without a sensible limit or across namespaces."""
    if type(start) is not RecordKey or type(end) is not RecordKey:
        raise ArgumentTypeError("a RecordKey (see RecordKey.within)", f"{type(start).__name__}, {type(end).__name__}")
    if type(limit) is not int or not 1 <= limit <= MAX_SCAN:
        raise InvalidChangeError(f"a scan takes a limit from 1 to {MAX_SCAN:,}, got {limit!r}")
    if not start or not end.startswith(start.namespace):
        raise InvalidChangeError(f"a scan stays inside one namespace; {start} and {end} do not")


def check_decision(decision: Decision[Any], seen: Snapshot, given: Sequence[RecordKey], limits: Capabilities) -> None:
    """Refuse a decision that reaches beyond the keys it was given, or expects other versions than it saw."""
    if type(decision) is not Decision:
        raise InvalidChangeError(f"decide must return a Decision, got {type(decision).__name__}")
    if not decision.changes:
        _check_wakes(decision.wake)
        check_one_namespace([*given, *(each.to for each in decision.wake)])
        return
    check_commit(decision.changes, decision.wake, limits)
    for change in decision.changes:
        if change.key not in given:
            raise InvalidChangeError(f"decide changed {change.key}, which it was not given")
        if change.expected != seen.version(change.key):
            raise InvalidChangeError(f"decide expects version {change.expected} of {change.key}, which it did not see")
    check_window(decision.after, decision.before)
    if not in_window(seen.at, decision.after, decision.before):
        raise InvalidChangeError("decide chose a time window that its own snapshot does not lie in")


def in_window(at: Instant, after: Instant | None, before: Instant | None) -> bool:
    """Return True if ``after <= at < before``."""
    return (after is None or after <= at) and (before is None or at < before)
