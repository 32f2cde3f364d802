"""What a URL of etcd says, and what its refusals mean."""

from __future__ import annotations

import pytest

from standfast.errors import (
    InvalidChangeError,
    InvalidUrlError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import Address
from standfast.stores.etcd.gateway import CompactedError, EtcdFailure, read_options, translate
from standfast.stores.etcd.server import capabilities_of


def test_several_members_and_a_prefix_are_read() -> None:
    """With the port that etcd has if none is named."""
    options = read_options(Address("etcd://app:secret@a,b:4001,[::1]/team/shop?timeout=3s&max_txn_ops=256"))
    assert options.urls == ("http://a:2379", "http://b:4001", "http://[::1]:2379")
    assert (options.prefix, options.user, options.password(), options.timeout) == ("team/shop", "app", "secret", 3.0)
    assert "secret" not in repr(options)
    assert capabilities_of(options).max_changes == 100


def test_a_cluster_as_shipped_takes_sixty_changes() -> None:
    """A change is up to two operations, and a few are needed for the rest."""
    limits = capabilities_of(read_options(Address("etcd://a/shop")))
    assert (limits.max_changes, limits.max_value_bytes) == (60, 350_000)
    assert limits.max_commit_bytes >= 3 * limits.max_value_bytes
    assert limits.sees_process_death


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("etcd://a/with space", "all keys begin with"),
        ("etcd://a/shop?max_txn_ops=16", "at least 32"),
        ("etcd://a/shop?connect_timeout=0s", "must be positive"),
        ("etcd://app@a/shop", "password of the user"),
        ("etcd://:secret@a/shop", "needs a user"),
        ("etcd://a/shop?lease=3", "unknown option"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_type(url: str, words: str) -> None:
    """And without the secret."""
    with pytest.raises(InvalidUrlError, match=words) as refused:
        read_options(Address(url))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        ("etcdserver: mvcc: database space exceeded", StoreFullError, "alarm disarm"),
        ("etcdserver: permission denied", StoreReadOnlyError, "readwrite"),
        ("etcdserver: user name is empty", StoreUnavailableError, "name one"),
        ("etcdserver: authentication is not enabled", UnsuitableStoreError, "leave the user out"),
        (
            "etcdserver: authentication failed, invalid user ID or password",
            StoreUnavailableError,
            "refuses the user or the password",
        ),
        ("etcdserver: corrupt cluster", StoreCorruptError, "restore"),
        ("etcdserver: request is too large", InvalidChangeError, "several commits"),
        ("etcdserver: too many operations in txn request", InvalidChangeError, "several commits"),
        ("etcdserver: mvcc: required revision has been compacted", CompactedError, "compacted"),
        ("etcdserver: something new", StoreError, "something new"),
    ],
)
def test_a_refusal_says_what_to_do(message: str, error: type[Exception], words: str) -> None:
    """Each of them has one error, and words."""
    found = translate(EtcdFailure(3, message), "etcd://a")
    assert type(found) is error
    assert words in str(found)
