"""Moving a whole store: export to a file, import from one, and fencing a store that was restored from a backup.

An export is a line of JSON a record, between one that begins and one that ends it. The last line has the number of
records and the SHA-256 of every byte before it. So a file that was cut short or changed is known before anything is
written anywhere.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, BinaryIO, Final, final

import msgspec
from msgspec import Struct, structs

from standfast.clock import SYSTEM_CLOCK, Instant
from standfast.errors import (
    InvalidArgumentError,
    StoreBusyError,
    StoreError,
    StoreMovedError,
    UnsuitableStoreError,
)
from standfast.keys import MAX_KEY_BYTES, RecordKey
from standfast.stores.backend import EXPORTED, OPEN, PAGE, Transfer, moved_error
from standfast.stores.protocol import MAX_VERSION, Conflict, Delete, Put, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from standfast.stores.group_commit import GroupedStore


# --- the file that a store is exported to: a line of JSON a record, between one that begins and one that ends it ---

FORMAT: Final = 1
LONGEST_LINE: Final = 64_000_000


class ExportHeader(Struct, frozen=True, tag="standfast export", tag_field="line"):
    """The first line: what this is, which backend it came from, and when, in microseconds."""

    format: int
    backend: str
    at: int


class ExportedRecord(Struct, frozen=True, tag="record", tag_field="line", omit_defaults=True):
    """A record; key and value are written in base64."""

    key: bytes
    version: int
    value: bytes
    expires_at: int | None = None


class ExportFooter(Struct, frozen=True, tag="end", tag_field="line"):
    """The last line. ``highest`` is the last version of the store, ``largest`` the size of the largest value."""

    records: int
    highest: int
    largest: int
    sha256: str


ExportLine = ExportHeader | ExportedRecord | ExportFooter

_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(ExportLine)


@final
class ExportWriter:
    """Writes an export to a file, or to anything that takes bytes."""

    def __init__(self, sink: BinaryIO, header: ExportHeader) -> None:
        self._sink, self._digest = sink, hashlib.sha256()
        self.records = self.highest = self.largest = 0
        self._write(header)

    def _write(self, line: ExportLine) -> None:
        data = _encode(line) + b"\n"
        self._digest.update(data)
        self._sink.write(data)

    def add(self, record: Record) -> None:
        """Write a record."""
        self._write(ExportedRecord(bytes(record.key), record.version, record.value, record.expires_at))
        self.records += 1
        self.highest = max(self.highest, record.version)
        self.largest = max(self.largest, len(record.value))

    def end(self, last: int) -> ExportFooter:
        """Write the last line; ``last`` is the last version of the store."""
        footer = ExportFooter(self.records, max(self.highest, last), self.largest, self._digest.hexdigest())
        self._write(footer)
        self._sink.flush()
        return footer


def survey(source: BinaryIO, name: str) -> tuple[ExportHeader, ExportFooter]:
    """Read a whole export and return its first and its last line; refuse anything that is not whole.

    Raises:
        InvalidArgumentError: It was cut short, or changed, or is of a newer format.
    """
    digest, seen = hashlib.sha256(), _ExportTotals()
    header = footer = None
    for raw, line in _lines(source, name):
        if footer is not None:
            raise InvalidArgumentError(f"the export {name}", "something follows its last line")
        if (header is None) != isinstance(line, ExportHeader):
            raise InvalidArgumentError(f"the export {name}", "it does not begin as an export does")
        if isinstance(line, ExportHeader):
            if line.format > FORMAT:
                problem = f"it has format {line.format}, this version of Standfast knows {FORMAT}"
                raise InvalidArgumentError(f"the export {name}", problem)
            header = line
        elif isinstance(line, ExportFooter):
            footer = line
            continue
        else:
            seen.take(line, name)
        digest.update(raw)
    if header is None or footer is None:
        raise InvalidArgumentError(
            f"the export {name}", "its end is missing: the export or the copying of the file was cut short"
        )
    if not seen.highest <= footer.highest <= MAX_VERSION:
        raise InvalidArgumentError(
            f"the export {name}", "it was changed: a record has a higher version than its last line says"
        )
    if footer != ExportFooter(seen.records, footer.highest, seen.largest, digest.hexdigest()):
        raise InvalidArgumentError(
            f"the export {name}", "it was changed: its records do not add up to what its last line says"
        )
    return header, footer


@final
class _ExportTotals:
    """What was counted so far."""

    def __init__(self) -> None:
        self.records = self.highest = self.largest = 0

    def take(self, entry: ExportedRecord, name: str) -> None:
        try:
            is_key = 0 < len(entry.key) <= MAX_KEY_BYTES and bool(RecordKey.from_encoded(entry.key).parts)
        except InvalidArgumentError:
            is_key = False
        if not is_key or not 0 < entry.version <= MAX_VERSION:
            raise InvalidArgumentError(f"the export {name}", f"its record number {self.records + 1} is none")
        self.records += 1
        self.highest = max(self.highest, entry.version)
        self.largest = max(self.largest, len(entry.value))


def records(source: BinaryIO, name: str) -> Iterator[Record]:
    """Return the records of an export that was surveyed, one after the other."""
    for _, line in _lines(source, name):
        if isinstance(line, ExportedRecord):
            expires_at = None if line.expires_at is None else Instant(line.expires_at)
            yield Record(RecordKey.from_encoded(line.key), line.value, line.version, expires_at)


def _lines(source: BinaryIO, name: str) -> Iterator[tuple[bytes, ExportLine]]:
    number = 0
    while raw := source.readline(LONGEST_LINE):
        number += 1
        try:
            yield raw, _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidArgumentError(f"the export {name}", f"its line {number} is not one of an export") from None


# --- records that stand for a living process, and not for anything that is kept ------------------------------------

PRESENCE: Final = "presence"
"""Says that a process is there. What it holds falls when it is not."""

WORKER: Final = "worker"
"""Guards what a process does with its runs. It stays when the process is gone, so that others find those runs."""

_KIND: Final = 2


def kind_of(key: RecordKey) -> str:
    """Return what kind of record lies at a key: its part after the namespace and the tenant. Empty if it has none."""
    try:
        parts = key.parts
    except InvalidArgumentError:
        return ""
    return parts[_KIND] if len(parts) > _KIND else ""


# --- fencing a restored store off from the processes that used it before the backup was made -----------------------

TRIES: Final = 20


class Fenced(Struct, frozen=True):
    """How many processes were taken for gone, and how many workers among them."""

    presences: int
    workers: int
    above: int
    """Every version from now on is higher."""


async def fence_store(store: GroupedStore) -> Fenced:
    """Take every process that the store knows of for gone.

    What they held is free: the next one that asks gets it, with a higher fence. Runs go on in the
    hands of workers that start from now on; those that had them cannot write to them any more.
    """
    transfer = store.transfer()
    presences = workers = highest = 0
    async for page in transfer.dump():
        highest = max(highest, *(record.version for record in page))
        for record in page:
            kind = kind_of(record.key)
            presences += kind == PRESENCE and await _fence(store, record, is_kept=False)
            workers += kind == WORKER and await _fence(store, record, is_kept=True)
    await transfer.lift(highest)
    return Fenced(presences, workers, highest)


SKEW: Final = 3_600_000_000
"""By how many microseconds the clock of a server that was lost may have been ahead: versions follow the time there."""


async def accept_loss(store: GroupedStore, *, seen: int = 0) -> Fenced:
    """Go on with what a store has after it lost commits that it had acknowledged.

    Every version from now on is higher than any that can have been given out before, lost ones included, so what was
    fenced stays fenced. Every process that the store knows of is taken for gone, as by :func:`fence_store`: what it
    held is free. Processes that noticed the loss must be started anew.

    Args:
        store: A handle that was opened after the loss.
        seen: The highest fence that is known outside of the store, on a resource that it guards, say.
    """
    transfer = store.transfer()
    above = max(await transfer.last(), seen, SYSTEM_CLOCK.wall()) + SKEW
    await transfer.lift(above)
    fenced = await fence_store(store)
    return structs.replace(fenced, above=above)


async def _fence(store: GroupedStore, record: Record, *, is_kept: bool) -> bool:
    """Remove a record, or give it another version; return True if it was still there."""
    current: Record | None = record
    for _ in range(TRIES):
        if current is None:
            return False
        put = Put(current.key, current.value, current.version, current.expires_at)
        answer = await store.commit(put if is_kept else Delete(current.key, current.version))
        if not isinstance(answer, Conflict):
            return True
        current = answer.current.get(record.key)
    raise StoreBusyError(store.backend.name, f"{record.key} was changed {TRIES} times meanwhile; stop its process")


# --- exporting: everything that a store keeps, once it takes no more writes ----------------------------------------


def untold(_records: int) -> None:
    """Report no progress."""


async def export_store(
    store: GroupedStore,
    sink: AbstractContextManager[BinaryIO],
    tell: Callable[[int], object] = untold,
    *,
    namespaces: Collection[str] = (),
) -> ExportFooter:
    """Freeze a store and write everything in it to ``sink``, except who is there: processes do not move.

    It stays frozen. If this fails it takes writes again, unless it was frozen before; a killed export leaves it frozen,
    to be exported once more or thawed.

    Args:
        store: The store, with all of its tenants. It is frozen as a whole, whatever is exported.
        sink: Opens what takes the bytes, in the form of :mod:`standfast.stores.transfer`, and closes it.
        tell: Called with the number of records so far, now and then.
        namespaces: Those to export; all if none is named.

    Raises:
        StoreMovedError: An import into it is not finished.
        StoreError: There is nothing in one of the namespaces.
    """
    transfer, backend = store.transfer(), store.capabilities.backend
    before = await transfer.frozen()
    if before not in {OPEN, EXPORTED}:
        raise moved_error(store.backend.name, before)
    try:
        with sink as file:
            await transfer.freeze(EXPORTED)
            writer = ExportWriter(file, ExportHeader(FORMAT, backend, SYSTEM_CLOCK.wall()))
            missing = await _write_all(transfer, writer, tell, namespaces)
            if missing:
                problem = f"there is nothing in the namespace {min(missing)!r}"
                raise StoreError(store.backend.name, problem)  # noqa: TRY301 -- what is undone below is undone for it too
            footer = writer.end(await transfer.last())
    except BaseException:
        if before == OPEN:
            await transfer.thaw()
        raise
    return footer


async def _write_all(
    transfer: Transfer, writer: ExportWriter, tell: Callable[[int], object], namespaces: Collection[str]
) -> set[str]:
    """Write the records of some namespaces, of all if none is named; return those in which there is nothing."""
    wanted, seen = {bytes(RecordKey(name)): name for name in namespaces}, set[str]()
    async for page in transfer.dump():
        for record in page:
            name = wanted.get(record.key.namespace)
            if kind_of(record.key) != PRESENCE and (name is not None or not wanted):
                writer.add(record)
                seen.add(name or "")
        tell(writer.records)
    return set(namespaces) - seen


# --- importing: everything in a file, with the versions that it had, into an empty store ---------------------------

_DIGITS: Final = 12


def untold_of(_records: int, _all: int) -> None:
    """Report no progress."""


async def import_store(
    store: GroupedStore, source: BinaryIO, name: str, tell: Callable[[int, int], object] = untold_of
) -> ExportFooter:
    """Write all records of an export into an empty store, and let it take writes above all of their versions.

    Until that is done the store is frozen for every other process. An import that broke off is repeated with the same
    file.

    Args:
        store: The store. It must be empty.
        source: The file. It is read twice: nothing is written before all of it was found to be whole.
        name: The file as shown to people.
        tell: Called with the number of records so far, and of all, now and then.

    Raises:
        InvalidArgumentError: The file is not a whole export.
        UnsuitableStoreError: There are records in the store already.
        UnsuitableStoreError: A value is too large for the store.
        StoreMovedError: The store itself was exported, or another file was not imported to its end.
    """
    _, footer = survey(source, name)
    most = store.capabilities.max_value_bytes
    if footer.largest > most:
        problem = f"the file has a value of {footer.largest:,} bytes, and {most:,} fit here; nothing was written"
        raise UnsuitableStoreError(store.backend.name, problem)
    transfer = store.transfer()
    is_repeated = await _claim(store, transfer, 1 + EXPORTED + int(footer.sha256[:_DIGITS], 16))
    source.seek(0)
    done = 0
    for page in _pages(records(source, name)):
        if is_repeated:
            await _check_same(store, page)
        await transfer.put(page)
        done += len(page)
        tell(done, footer.records)
    await transfer.lift(footer.highest)
    await transfer.thaw()
    return footer


async def _claim(store: GroupedStore, transfer: Transfer, reason: int) -> bool:
    """Freeze the store for this file; return True if it was already, by an import that broke off."""
    found = await transfer.frozen()
    if found == reason:
        return True
    if found == EXPORTED:
        raise moved_error(store.backend.name)
    if found != OPEN:
        raise StoreMovedError(store.backend.name, "the import of another file into it is not finished; repeat that one")
    await _check_empty(store, transfer)
    await transfer.freeze(reason)
    try:
        await _check_empty(store, transfer)  # a write may have been under way
    except UnsuitableStoreError:
        await transfer.thaw()
        raise
    return False


async def _check_empty(store: GroupedStore, transfer: Transfer) -> None:
    async for page in transfer.dump():
        raise UnsuitableStoreError(
            store.backend.name, f"it holds records, {page[0].key} for one; import into an empty store"
        )


async def _check_same(store: GroupedStore, page: Sequence[Record]) -> None:
    """See that nothing is written over but what this very import has written."""
    for _, group in itertools.groupby(page, lambda record: record.key.namespace):
        for some in _pages(group, store.capabilities.max_changes):
            seen = await store.read(*(record.key for record in some))
            for record in some:
                there = seen.get(record.key)
                if there is not None and there != record:
                    problem = f"it holds another record at {record.key} than the file; import into an empty store"
                    raise UnsuitableStoreError(store.backend.name, problem)


def _pages(all_records: Iterator[Record], size: int = PAGE) -> Iterator[list[Record]]:
    while page := list(itertools.islice(all_records, size)):
        yield page
