"""The URL of a table: what it means, what is refused, and that no secret is shown."""

from __future__ import annotations

import pytest

from standfast.errors import InvalidUrlError
from standfast.stores.address import Address
from standfast.stores.dynamodb.connection import DynamoOptions, options_of


def read(url: str) -> DynamoOptions:
    """Read a URL."""
    return options_of(Address(url))


def test_a_table_of_the_service_needs_a_region_alone() -> None:
    """Credentials come from the usual chain, and the connection is encrypted."""
    options = read("dynamodb:///orders?region=eu-central-1")

    assert (options.table, options.region, options.endpoint, options.access) == ("orders", "eu-central-1", "", "")
    assert options.tls is not None
    assert (options.create, options.shortest_lease) == (False, 10.0)


def test_a_server_of_ones_own_is_named_by_its_host() -> None:
    """Keys, host and port are in the URL; the region is then a formality."""
    options = read("dynamodb://key:s%2Fcret@localhost:8000/orders?tls=false")

    assert (options.endpoint, options.access, options.secret) == ("http://localhost:8000", "key", "s/cret")
    assert options.region == "us-east-1"


def test_an_endpoint_is_encrypted_unless_told_otherwise() -> None:
    """A host without more is https."""
    assert read("dynamodb://key:secret@[::1]/orders").endpoint == "https://[::1]:443"


def test_options_are_read() -> None:
    """Each option of the URL is taken."""
    options = read("dynamodb:///orders?timeout=2s&connect_timeout=1s&pool=4&create=true&shortest_lease=500ms")

    assert (options.timeout, options.connect_timeout, options.pool) == (2.0, 1.0, 4)
    assert (options.create, options.shortest_lease) == (True, 0.5)


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb:///",
        "dynamodb:///ab",
        "dynamodb:///a/b/c",
        "dynamodb:///orders?region=EU!",
        "dynamodb:///orders?lease=1",
        "dynamodb://key@host/orders",
        "dynamodb://:secret@host/orders",
        "dynamodb://one,two/orders",
    ],
)
def test_what_makes_no_sense_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidUrlError):
        read(url)


def test_the_secret_is_not_shown() -> None:
    """Neither by the options nor by their name."""
    options = read("dynamodb://key:hunter2@host/orders")

    assert "hunter2" not in repr(options) + options.name
