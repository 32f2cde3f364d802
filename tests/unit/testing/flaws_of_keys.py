"""Flaws of keys, values and ranges."""

from __future__ import annotations

import unicodedata
from typing import Any

from standfast.keys import RecordKey
from standfast.stores.protocol import Record, Snapshot
from tests.unit.testing.flaws import flaw
from tests.unit.testing.tiny import Tiny

# --- scans and keys -------------------------------------------------------------------------------------------------


@flaw
class _EndIsInRange(Tiny):
    """The end of a range belongs to it."""

    def in_range(self, key: RecordKey, start: RecordKey, end: RecordKey) -> bool:
        return start <= key <= end


@flaw
class _StartIsNotInRange(Tiny):
    """The start of a range does not belong to it."""

    def in_range(self, key: RecordKey, start: RecordKey, end: RecordKey) -> bool:
        return start < key < end


@flaw
class _PagesRepeat(Tiny):
    """The last record of a page comes again on the next."""

    def go_on(self, page: list[Record], *, reverse: bool) -> RecordKey:
        return page[-1].key.successor() if reverse else page[-1].key


@flaw
class _SortedAsText(Tiny):
    """A scan sorts keys as text, without their case."""

    def sort_key(self, record: Record) -> Any:
        return [part.casefold() for part in record.key.parts]


@flaw
class _NoReverse(Tiny):
    """A reverse scan goes forwards."""

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:  # noqa: ARG002 -- not looking at it is the flaw
        return await super().scan(start, end, limit=limit, reverse=False)


@flaw
class _ExpiredFillPages(Tiny):
    """Expired records take up room on a page."""

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        everything = [each for each in self.rows.values() if self.in_range(each.key, start, end)]
        inside = sorted(everything, key=self.sort_key, reverse=reverse)[:limit]
        page = self.scannable(inside, self.now())
        more = None if len(everything) <= limit else self.go_on(inside, reverse=reverse)
        return Snapshot(self.now(), {record.key: record for record in page}, more)


class _Folded(Tiny):
    """A store that confuses keys."""

    def fold(self, part: str) -> str:
        return part

    def row(self, key: RecordKey) -> bytes:
        return bytes(RecordKey(*[self.fold(part) for part in key.parts]))


@flaw
class _CaseInsensitive(_Folded):
    """Keys are compared without their case."""

    def fold(self, part: str) -> str:
        return part.lower()


@flaw
class _Padded(_Folded):
    """Spaces at the end of a key do not count."""

    def fold(self, part: str) -> str:
        return part.rstrip(" ")


@flaw
class _Normalised(_Folded):
    """Keys are normalised."""

    def fold(self, part: str) -> str:
        return unicodedata.normalize("NFC", part)


@flaw
class _NulEnds(_Folded):
    """A key ends at a NUL."""

    def fold(self, part: str) -> str:
        return part.split("\x00", maxsplit=1)[0]


@flaw
class _Joined(_Folded):
    """The parts of a key are joined by a separator that may be part of them."""

    def row(self, key: RecordKey) -> bytes:
        return "\x1f".join(key.parts).encode() if "\x1f" in "".join(key.parts) else ":".join(key.parts).encode()


@flaw
class _NulEndsValues(Tiny):
    """A value ends at a NUL."""

    def kept(self, value: bytes) -> bytes:
        return value.split(b"\x00")[0]


@flaw
class _TextValues(Tiny):
    """A value is kept as text."""

    def kept(self, value: bytes) -> bytes:
        return value.decode(errors="replace").encode()
