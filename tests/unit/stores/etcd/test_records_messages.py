"""Messages that show records: each is put in the transaction of what it shows, so its revision is theirs."""

from __future__ import annotations

import pytest

from standfast.keys import RecordKey
from standfast.stores.etcd.gateway import KeyValue
from standfast.stores.etcd.records import PLACES, KnownRecord, message_value, read_message
from standfast.stores.protocol import Record
from standfast.stores.remote.server import Message, Row
from standfast.stores.remote.subscriptions import decode_message, encode_message

A, B, INBOX = RecordKey("n", "a"), RecordKey("n", "b"), RecordKey("n", "inbox")
DATA = encode_message("origin", [])


def test_a_shown_record_has_the_revision_of_its_message() -> None:
    """And its place among the versions of the transaction, and the base of the store."""
    message = Message(b"topic", DATA, ((INBOX, Row(A, b"one", 0)), (INBOX, Row(B, b"two", 3))), (INBOX,))
    data, shown, gone = read_message(KeyValue(b"m", 7, message_value(message, 5, ())))
    assert (data, gone) == (DATA, [INBOX])
    versions = ((7 + 5) << PLACES), ((7 + 5) << PLACES) + 3
    assert [each.record for each in shown] == [Record(A, b"one", versions[0]), Record(B, b"two", versions[1])]
    assert [each.known for each in shown] == [KnownRecord(version, 7, None) for version in versions]
    assert {each.to for each in shown} == {INBOX}


def test_a_shown_record_may_have_a_version_that_was_reserved() -> None:
    """Then it is the one that is written."""
    message = Message(b"topic", DATA, ((INBOX, Row(A, b"one", 1)),))
    [shown] = read_message(KeyValue(b"m", 7, message_value(message, 0, (90, 91))))[1]
    assert shown.record.version == 91
    assert shown.known.revision == 7


def test_a_message_that_shows_nothing_is_its_data() -> None:
    """As releases that show nothing write and read it."""
    assert message_value(Message(b"topic", DATA), 5, ()) == DATA
    assert read_message(KeyValue(b"m", 7, DATA)) == (DATA, [], [])


@pytest.mark.parametrize("value", [b"\x02", b"\x02nonsense", b"\x02\x93\xc4\x00\x91\x93\xc4\x01a\xc4\x01b\xc4\x00\x90"])
def test_what_cannot_be_read_says_that_anything_may_have_changed(value: bytes) -> None:
    """Whoever has put it there."""
    data, shown, gone = read_message(KeyValue(b"m", 7, value))
    assert (shown, gone) == ([], [])
    assert decode_message(data)[1] is None
