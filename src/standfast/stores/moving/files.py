"""The file that a store is exported to: a line of JSON a record, between one that begins and one that ends it.

The last line has the number of records and the SHA-256 of every byte before it. So a file that was cut short or changed
is known before anything is written anywhere.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO, Final, final

import msgspec
from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import InvalidExportError, InvalidKeyError
from standfast.keys import MAX_KEY_BYTES, RecordKey
from standfast.stores.protocol import MAX_VERSION, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = 1
LONGEST_LINE: Final = 64_000_000


class Header(Struct, frozen=True, tag="standfast export", tag_field="line"):
    """The first line: what this is, which backend it came from, and when, in microseconds."""

    format: int
    backend: str
    at: int


class Entry(Struct, frozen=True, tag="record", tag_field="line", omit_defaults=True):
    """A record; key and value are written in base64."""

    key: bytes
    version: int
    value: bytes
    expires_at: int | None = None


class Footer(Struct, frozen=True, tag="end", tag_field="line"):
    """The last line. ``highest`` is the last version of the store, ``largest`` the size of the largest value."""

    records: int
    highest: int
    largest: int
    sha256: str


Line = Header | Entry | Footer

_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Line)


@final
class Writer:
    """Writes an export to a file, or to anything that takes bytes."""

    def __init__(self, sink: BinaryIO, header: Header) -> None:
        self._sink, self._digest = sink, hashlib.sha256()
        self.records = self.highest = self.largest = 0
        self._write(header)

    def _write(self, line: Line) -> None:
        data = _encode(line) + b"\n"
        self._digest.update(data)
        self._sink.write(data)

    def add(self, record: Record) -> None:
        """Write a record."""
        self._write(Entry(bytes(record.key), record.version, record.value, record.expires_at))
        self.records += 1
        self.highest = max(self.highest, record.version)
        self.largest = max(self.largest, len(record.value))

    def end(self, last: int) -> Footer:
        """Write the last line; ``last`` is the last version of the store."""
        footer = Footer(self.records, max(self.highest, last), self.largest, self._digest.hexdigest())
        self._write(footer)
        self._sink.flush()
        return footer


def survey(source: BinaryIO, name: str) -> tuple[Header, Footer]:
    """Read a whole export and return its first and its last line; refuse anything that is not whole.

    Raises:
        InvalidExportError: It was cut short, or changed, or is of a newer format.
    """
    digest, seen = hashlib.sha256(), _Seen()
    header = footer = None
    for raw, line in _lines(source, name):
        if footer is not None:
            raise InvalidExportError(name, "something follows its last line")
        if (header is None) != isinstance(line, Header):
            raise InvalidExportError(name, "it does not begin as an export does")
        if isinstance(line, Header):
            header = _known(line, name)
        elif isinstance(line, Footer):
            footer = line
            continue
        else:
            seen.take(line, name)
        digest.update(raw)
    if header is None or footer is None:
        raise InvalidExportError(name, "its end is missing: the export or the copying of the file was cut short")
    if not seen.highest <= footer.highest <= MAX_VERSION:
        raise InvalidExportError(name, "it was changed: a record has a higher version than its last line says")
    if footer != Footer(seen.records, footer.highest, seen.largest, digest.hexdigest()):
        raise InvalidExportError(name, "it was changed: its records do not add up to what its last line says")
    return header, footer


def _known(header: Header, name: str) -> Header:
    if header.format > FORMAT:
        raise InvalidExportError(name, f"it has format {header.format}, this version of Standfast knows {FORMAT}")
    return header


@final
class _Seen:
    """What was counted so far."""

    def __init__(self) -> None:
        self.records = self.highest = self.largest = 0

    def take(self, entry: Entry, name: str) -> None:
        try:
            is_key = 0 < len(entry.key) <= MAX_KEY_BYTES and bool(RecordKey.from_encoded(entry.key).parts)
        except InvalidKeyError:
            is_key = False
        if not is_key or not 0 < entry.version <= MAX_VERSION:
            raise InvalidExportError(name, f"its record number {self.records + 1} is none")
        self.records += 1
        self.highest = max(self.highest, entry.version)
        self.largest = max(self.largest, len(entry.value))


def records(source: BinaryIO, name: str) -> Iterator[Record]:
    """Return the records of an export that was surveyed, one after the other."""
    for _, line in _lines(source, name):
        if isinstance(line, Entry):
            expires_at = None if line.expires_at is None else Instant(line.expires_at)
            yield Record(RecordKey.from_encoded(line.key), line.value, line.version, expires_at)


def _lines(source: BinaryIO, name: str) -> Iterator[tuple[bytes, Line]]:
    number = 0
    while raw := source.readline(LONGEST_LINE):
        number += 1
        try:
            yield raw, _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidExportError(name, f"its line {number} is not one of an export") from None
