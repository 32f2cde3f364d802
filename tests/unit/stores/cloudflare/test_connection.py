"""The messages between a handle and an object, and what an object's failures mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import InvalidChangeError, InvalidUrlError, StoreFullError, StoreUnavailableError
from standfast.stores.address import Address, Credentials
from standfast.stores.cloudflare.connection import failure, pack, read_options, unpack

SECRET = "a-secret-of-the-test"  # noqa: S105 -- it opens nothing


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_the_bytes_of_a_message_come_out_as_they_went_in(parts: list[bytes]) -> None:
    """In their order, whatever they are."""
    number, reply = unpack(pack((7, "records", [len(part) for part in parts]), parts))

    assert (number, reply.status) == (7, "records")
    assert [reply.take(length) for length in reply.fields[0]] == parts


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\x00\x00\x00\x02{]", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x01"])
def test_what_is_no_message_is_a_value_error(data: bytes) -> None:
    """The reader gives the connection up, and nothing else happens."""
    with pytest.raises(ValueError, match="not a message"):
        unpack(data)


def test_failures_of_an_object_say_what_to_do() -> None:
    """A full object, a record that is too large, and all else."""
    assert isinstance(failure("database or disk is full: SQLITE_FULL", "store"), StoreFullError)
    assert isinstance(failure("string or blob too big: SQLITE_TOOBIG", "store"), InvalidChangeError)
    assert isinstance(failure("internal error", "store"), StoreUnavailableError)


def test_a_url_is_read_and_its_secret_stays_out_of_sight() -> None:
    """TLS is the default, and the port that of the web."""
    options = read_options(Address(f"cloudflare://:{SECRET}@store.example.com?prefix=mine&timeout=2s"))

    assert (options.url, options.prefix, options.timeout) == ("wss://store.example.com:443", "mine", 2.0)
    assert options.tls is not None
    assert options.authorization() == f"Bearer {SECRET}"
    assert SECRET not in repr(options)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_this_machine_may_be_spoken_to_in_plain_text(host: str) -> None:
    """On the port of wrangler dev, if none is named."""
    options = read_options(Address(f"cloudflare://:{SECRET}@{host}?tls=false"))

    assert options.url == f"ws://{host}:8787"
    assert options.tls is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("cloudflare://store.example.com", "secret is missing"),
        ("cloudflare://:short@store.example.com", "at least 16"),
        (f"cloudflare://user:{SECRET}@store.example.com", "no users"),
        (f"cloudflare://:{SECRET}@store.example.com/path", "prefix="),
        (f"cloudflare://:{SECRET}@store.example.com?tls=false", "on this machine"),
        (f"cloudflare://:{SECRET}@store.example.com?prefix=No", "prefix is"),
        (f"cloudflare://:{SECRET}@store.example.com?pool=2", "unknown option"),
    ],
)
def test_what_a_url_cannot_say_is_refused_with_what_to_type(url: str, problem: str) -> None:
    """And no refusal shows the secret."""
    with pytest.raises(InvalidUrlError, match=problem) as refused:
        read_options(Address(url))
    assert SECRET not in str(refused.value)


def test_a_secret_from_a_file_ends_with_its_last_character() -> None:
    """The end of the line is not part of it."""
    address = Address("cloudflare://store.example.com", Credentials(f"{SECRET}\n"))

    assert read_options(address).authorization() == f"Bearer {SECRET}"
