"""Addresses: what a URL says, what it may not say, and what nobody gets to see."""

from __future__ import annotations

import pickle
import ssl
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import InvalidUrlError
from standfast.stores.address import Address, split_url
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_an_address_is_taken_apart() -> None:
    """User, password, host, port and path, decoded."""
    address = Address("postgresql://a%40b:p%2Fw@db.example:6543/my%20data?timeout=250ms")

    assert (address.user, address.password) == ("a@b", "p/w")
    assert address.host(5432) == ("db.example", 6543)
    assert address.path() == "my data"
    assert address.take_seconds("timeout", 5) == 0.25


@pytest.mark.parametrize(
    ("netloc", "hosts"),
    [
        ("", [("localhost", 1)]),
        ("db", [("db", 1)]),
        ("db:7", [("db", 7)]),
        ("[::1]", [("::1", 1)]),
        ("[::1]:7", [("::1", 7)]),
        ("user:pw@a,b:2", [("a", 1), ("b", 2)]),
    ],
)
def test_hosts_and_ports(netloc: str, hosts: list[tuple[str, int]]) -> None:
    """One or several, with a port or with the usual one."""
    assert Address(f"redis://{netloc}/0").hosts(1) == hosts


@pytest.mark.parametrize(
    ("query", "take"),
    [
        ("timeout=soon", lambda address: address.take_seconds("timeout", 5)),
        ("pool=0", lambda address: address.take_count("pool", 4)),
        ("pool=many", lambda address: address.take_count("pool", 4)),
        ("tls=perhaps", lambda address: address.tls(default=True)),
        ("mode=x", lambda address: address.take_choice("mode", ["a", "b"], "a")),
        ("unheard=of", lambda address: address.finish("timeout")),
        ("#fragment", lambda address: address.finish("timeout")),
    ],
)
def test_what_an_option_cannot_be_is_refused(query: str, take: Callable[[Address], object]) -> None:
    """The message names the option and what it may be."""
    with pytest.raises(InvalidUrlError, match=r"timeout|pool|tls|mode|unheard|%23"):
        take(Address(f"redis://host/0?{query}" if query[0] != "#" else f"redis://host/0{query}"))


@pytest.mark.parametrize("port", ["x", "70000", "-1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    """Before anything is connected to."""
    with pytest.raises(InvalidUrlError, match="name:port"):
        Address(f"redis://host:{port}/0").hosts(6379)


def test_nothing_secret_is_shown() -> None:
    """Neither of the URL nor of the credentials."""
    credentials = sf.admin.Credentials("hunter2")
    address = Address("redis://app:hunter2@host/0?token=hunter2", credentials)

    assert "hunter2" not in f"{address!r} {address.name} {credentials!r}"
    assert address.password == "hunter2"  # noqa: S105 -- no secret
    with pytest.raises(TypeError):
        pickle.dumps(credentials)


def test_a_password_that_changes_is_asked_for_each_time() -> None:
    """A token that runs out is replaced by the next connection."""
    tokens = iter(["first", "second"])
    address = Address("postgresql://app:old@host/db", sf.admin.Credentials(lambda: next(tokens)))

    assert [address.password, address.password] == ["first", "second"]


@pytest.mark.parametrize(("written", "seconds"), [("5", 5.0), ("0.5", 0.5), ("5s", 5.0), ("500ms", 0.5)])
def test_a_duration_without_a_unit_is_in_seconds(written: str, seconds: float) -> None:
    """As everywhere else."""
    assert Address(f"redis://host/0?timeout={written}").take_seconds("timeout", 1.0) == seconds


def test_an_authority_asks_for_tls_and_is_never_ignored(tmp_path: Path) -> None:
    """Whoever names one wants it to be looked at; it is refused where it would not be."""
    (tmp_path / "none").write_text("no certificate")
    url = f"redis://host?tls_ca={tmp_path / 'none'}"

    for refused in (Address(url), Address(f"{url}-missing"), Address(f"{url}&tls=false")):
        with pytest.raises(InvalidUrlError, match="tls_ca"):
            refused.tls(default=False)
    for credentials in (sf.admin.Credentials(tls=False), sf.admin.Credentials(tls=ssl.create_default_context())):
        with pytest.raises(InvalidUrlError, match="tls_ca"):
            Address(url, credentials).tls(default=False)


def test_tls_checks_certificates_and_names() -> None:
    """Unless the caller brings a context of its own."""
    made = Address("redis://host?tls=true").tls(default=False)
    own = ssl.create_default_context()

    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.check_hostname
    assert Address("redis://host?tls=true", sf.admin.Credentials(tls=False)).tls(default=True) is None
    assert Address("redis://host", sf.admin.Credentials(tls=own)).tls(default=False) is own


@pytest.mark.parametrize("url", ["memory://", "sqlite:///x.db"])
async def test_only_a_server_takes_credentials(url: str) -> None:
    """They would be without effect, and their owner would think otherwise."""
    with pytest.raises(InvalidUrlError, match="credentials"):
        await open_store(url, credentials=sf.admin.Credentials("hunter2"))


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("redis://db.example.com", ("db.example.com",)),
        ("redis://10.0.0.1,localhost,[::1],[2001:db8::1]", ("10.0.0.1", "2001:db8::1")),
        ("redis://127.0.0.9", ()),
        ("redis://app.localhost", ()),
        ("redis://%2Frun%2Fredis.sock", ()),
        ("redis://db.example.com?tls=true", ()),
        ("dynamodb:///table?tls=false", ()),
    ],
)
def test_what_leaves_this_machine_without_tls_is_known(url: str, exposed: tuple[str, ...]) -> None:
    """Loopback addresses and unix sockets are this machine's own."""
    address = Address(url)
    address.tls(default=False)

    assert address.exposed == exposed


@pytest.mark.parametrize("hosts", ["a,[::x]", "a,[::1", "[v].x,b"])
def test_each_of_several_hosts_is_checked(hosts: str) -> None:
    """As the one host of another URL is."""
    with pytest.raises(ValueError, match=r"\w"):
        split_url(f"redis://user:secret@{hosts}/0?tls=true")


def test_several_hosts_are_taken_apart_like_one() -> None:
    """Newer Pythons refuse brackets behind a comma: they know of one host."""
    parts = split_url("redis://us%40er:a,b@10.0.0.1:7,[::1]:8/0?tls=true#x")
    assert (parts.username, parts.password, parts.netloc) == ("us%40er", "a,b", "us%40er:a,b@10.0.0.1:7,[::1]:8")
    assert (parts.scheme, parts.path, parts.query, parts.fragment) == ("redis", "/0", "tls=true", "x")
