"""The file of an export: whole, or refused."""

from __future__ import annotations

import io

import pytest

from standfast.clock import Instant
from standfast.errors import InvalidArgumentError
from standfast.keys import RecordKey
from standfast.stores import Record
from standfast.stores.transfer import FORMAT, ExportHeader, ExportWriter, records, survey

HEADER = ExportHeader(FORMAT, "memory", 1)
RECORDS = [
    Record(RecordKey("space", "default", "a"), b"\x00\xff", 7),
    Record(RecordKey("space", "default", "\N{SNOWMAN}\0"), b"", 9_007_199_254_740_991, Instant(5)),
]


def written(header: ExportHeader = HEADER, last: int = 3) -> bytes:
    """Return a whole file."""
    sink = io.BytesIO()
    writer = ExportWriter(sink, header)
    for record in RECORDS:
        writer.add(record)
    writer.end(last)
    return sink.getvalue()


def test_records_come_back_as_they_were() -> None:
    """Keys, values, versions and expiries are kept to the bit."""
    assert list(records(io.BytesIO(written()), "file")) == RECORDS


def test_the_last_line_tells_what_is_in_it() -> None:
    """How many, how high, how large."""
    header, footer = survey(io.BytesIO(written()), "file")

    assert header == HEADER
    assert (footer.records, footer.highest, footer.largest) == (2, 9_007_199_254_740_991, 2)


def test_the_last_version_of_the_store_is_kept_if_no_record_has_it() -> None:
    """What a deleted record had is not given out again."""
    sink = io.BytesIO()
    ExportWriter(sink, ExportHeader(FORMAT, "memory", 1)).end(77)

    assert survey(io.BytesIO(sink.getvalue()), "file")[1].highest == 77


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    """Whether at a line or in the middle of one."""
    whole = written()

    for length in range(len(whole) - 1):
        with pytest.raises(InvalidArgumentError):
            survey(io.BytesIO(whole[:length]), "file")


def test_a_file_with_any_byte_changed_is_refused() -> None:
    """Each byte counts: those of records, and those of the first and the last line."""
    whole = written()

    for place in range(len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(InvalidArgumentError):
            survey(io.BytesIO(bytes(changed)), "file")


@pytest.mark.parametrize(
    "order", [(0, 2, 1, 3), (0, 1, 3), (1, 2, 3), (0, 1, 2, 3, 1), (0, 0, 1, 2, 3), (0, 1, 1, 2, 3)]
)
def test_lines_that_are_moved_left_out_or_doubled_are_noticed(order: tuple[int, ...]) -> None:
    """A file is one thing, in one order."""
    lines = written().splitlines(keepends=True)

    with pytest.raises(InvalidArgumentError):
        survey(io.BytesIO(b"".join(lines[int(number)] for number in order)), "file")


def test_a_file_of_a_newer_format_is_refused() -> None:
    """It says which one."""
    with pytest.raises(InvalidArgumentError, match="format 2"):
        survey(io.BytesIO(written(ExportHeader(FORMAT + 1, "memory", 1))), "file")


@pytest.mark.parametrize("data", [b"", b"hello\n", b"{}\n", b"\xff\n", b"[" * 100_000])
def test_something_else_is_refused(data: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(InvalidArgumentError):
        survey(io.BytesIO(data), "file")
