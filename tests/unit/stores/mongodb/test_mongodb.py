"""The URL of a MongoDB store says what to type when it is wrong."""

from __future__ import annotations

import ssl

import pytest

from standfast.errors import InvalidUrlError, UnsuitableStoreError
from standfast.stores.address import Address, Credentials
from standfast.stores.mongodb.connection import read_options
from standfast.stores.mongodb.server import _check_server  # pyright: ignore[reportPrivateUsage] -- asked without a server


def test_a_url_is_read() -> None:
    """Several hosts, a database, our options and those of the driver."""
    url = "mongodb://a,b:27018/app?replicaSet=rs0&prefix=jobs&timeout=2s&pool=3&migrate=false&reads=linearizable"

    options = read_options(Address(url))

    assert options.hosts == ("a:27017", "b:27018")
    assert (options.database, options.prefix, options.timeout, options.pool) == ("app", "jobs", 2.0, 3)
    assert (options.migrate, options.linearizable, options.tls) == (False, True, False)
    assert options.driver == {"replicaSet": "rs0"}


def test_a_domain_is_asked_for_hosts_and_speaks_tls() -> None:
    """As mongodb+srv:// does everywhere."""
    options = read_options(Address("mongodb+srv://cluster.example.com/app"))

    assert options.is_srv
    assert options.tls


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mongodb://host", "name a database"),
        ("mongodb://host/a.b", "name a database"),
        ("mongodb://host/$where", "name a database"),
        ("mongodb://host/app?prefix=Jobs", "prefix is"),
        ("mongodb://host/app?prefix=a.b", "prefix is"),
        ("mongodb://host/app?prefix=" + "a" * 32, "prefix is"),
        ("mongodb://host/app?w=1", "unknown option 'w'"),
        ("mongodb://host/app?reads=stale", "reads is one of"),
        ("mongodb+srv://host:1/app", "without a port"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str) -> None:
    """Names of collections are never made of anything else than a few letters."""
    with pytest.raises(InvalidUrlError, match=problem):
        read_options(Address(url))


def test_a_tls_context_is_refused_rather_than_ignored() -> None:
    """The driver makes its own of files."""
    address = Address("mongodb://host/app", Credentials(tls=ssl.create_default_context()))

    with pytest.raises(InvalidUrlError, match="tls_ca"):
        read_options(address)


@pytest.mark.parametrize(
    ("hello", "problem"),
    [
        ({"maxWireVersion": 17}, "no member of a replica set"),
        ({"msg": "isdbgrid", "maxWireVersion": 17}, "router"),
        ({"setName": "rs0", "maxWireVersion": 9}, r"MongoDB 5\.0"),
    ],
)
def test_a_server_that_cannot_keep_the_promises_is_refused(hello: dict[str, object], problem: str) -> None:
    """One without transactions, one with a time of its own, one that is too old."""
    with pytest.raises(UnsuitableStoreError, match=problem):
        _check_server("mongodb://host/app", hello)
