"""Statements: what goes into one packet, and which errors leave no doubt."""

from __future__ import annotations

import pytest
from asyncmy import errors as driver

from standfast.errors import (
    StoreBusyError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.keys import RecordKey
from standfast.stores.mysql.connection import MysqlTables, check, is_certain, translated, weakness_of
from standfast.stores.mysql.sql import LONGEST_STATEMENT, create, literal, packets, put
from standfast.stores.remote import Row

NAMES = MysqlTables.of("standfast")
GOOD = {"version": "10.11.1-MariaDB", "max_allowed_packet": "16777216", "innodb_flush_log_at_trx_commit": "1"}


def rows(count: int, size: int) -> list[Row]:
    """Rows with large values."""
    return [Row(RecordKey("n", str(number)), b"v" * size, 0) for number in range(count)]


def test_nothing_from_outside_can_end_a_literal() -> None:
    """All that is in one is hexadecimal digits."""
    assert literal(b"'; DROP TABLE x; --\\") == "x'273b2044524f50205441424c4520783b202d2d5c'"


@pytest.mark.parametrize("write", [put, create])
def test_many_large_rows_are_written_by_several_statements(write: object) -> None:
    """None of them is longer than a server takes, and no row is left out."""
    made = list(write(NAMES, rows(10, 300_000)))  # type: ignore[operator]  # one of two functions

    assert len(made) == 10
    assert all(len(each) < LONGEST_STATEMENT for each in made)
    assert sum(each.count("x'") for each in made) == 20


def test_statements_fill_a_packet_and_then_the_next() -> None:
    """In their order; one that is too long by itself still goes."""
    assert list(packets(["aa", "bb", "cc", "ddddddd", "e"], 6)) == ["aa;bb", "cc", "ddddddd", "e"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(1213, StoreBusyError), (1205, StoreBusyError), (1290, StoreReadOnlyError), (1114, StoreFullError)],
)
def test_an_error_that_undoes_a_transaction_leaves_no_doubt(code: int, kind: type) -> None:
    """It is raised as what it is, and may be tried again."""
    problem = driver.OperationalError(code, "said the server")

    assert is_certain(problem)
    assert type(translated(problem, "mysql://host")) is kind


@pytest.mark.parametrize("code", [2013, 1317, 1927, 1053, 1180, 9999])
def test_an_error_that_may_follow_a_commit_leaves_it_open(code: int) -> None:
    """Only what is known to come before counts as certain."""
    assert not is_certain(driver.OperationalError(code, "said the server"))


def test_no_answer_in_time_is_not_certain() -> None:
    """The server may be at it still."""
    assert not is_certain(TimeoutError())
    assert type(translated(TimeoutError(), "mysql://host")) is StoreUnavailableError


@pytest.mark.parametrize(
    "flaw",
    [
        {"version": "10.5.9-MariaDB"},
        {"version": "5.7.44-log"},
        {"max_allowed_packet": "1048576"},
        {"log_bin": "ON", "binlog_format": "STATEMENT"},
        {"wsrep_on": "ON"},
        {"group_replication_single_primary_mode": "OFF"},
    ],
)
def test_a_server_that_cannot_keep_the_promises_is_refused(flaw: dict[str, str]) -> None:
    """Rather than half kept."""
    check(GOOD, "mysql://host")
    with pytest.raises(UnsuitableStoreError):
        check(GOOD | flaw, "mysql://host")


def test_a_log_that_is_not_synced_counts_only_if_there_is_one() -> None:
    """Without a binary log its setting means nothing."""
    assert weakness_of(GOOD | {"log_bin": "OFF", "sync_binlog": "0"}) == ""
    assert weakness_of(GOOD | {"log_bin": "ON", "sync_binlog": "0"}) == "sync_binlog=0"
