"""Masking: no address, well-formed or not, shows its secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.redaction import mask_data, mask_message, mask_text, mask_url
from standfast.stores.cloudflare import connection as cloudflare
from standfast.stores.dynamodb import connection as dynamodb
from standfast.stores.etcd import gateway as etcd
from standfast.stores.libsql import connection as libsql
from standfast.stores.mongodb import connection as mongodb
from standfast.stores.mysql import connection as mysql
from standfast.stores.postgresql import connection as postgresql
from standfast.stores.redis import connection as redis
from standfast.stores.url import SQLITE_OPTIONS

CANARY = "hunter2"
SHAPES = ["postgresql://u:{}@h/db", "redis://:{}@h", "x://h/?password={}&mode=a", "u:{}@h"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/prod", "postgresql://app:***@db:5432/prod"),
        ("redis://:hunter2@cache/0", "redis://:***@cache/0"),
        ("redis://hunter2@cache", "redis://***@cache"),
        ("redis://hunter2:@cache", "redis://***@cache"),
        ("postgresql://db/prod?password=hunter2&sslmode=require", "postgresql://db/prod?password=***&sslmode=require"),
        ("postgresql://db/prod?sslpassword=hunter2;x=hunter2", "postgresql://db/prod?sslpassword=***&x=***"),
        ("libsql://db?authToken=hunter2", "libsql://db?authToken=***"),
        ("mongodb://u:hunter2@a:1,b:2/db?replicaSet=rs0", "mongodb://u:***@a:1,b:2/db?replicaSet=rs0"),
        ("mongodb://a:27017,b:27017/db", "mongodb://a:27017,b:27017/db"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sqlite:///data/me@home/x.db?network=allow", "sqlite:///data/me@home/x.db?network=allow"),
        ("sqlite:///x.db?key=hunter2", "sqlite:///x.db?key=***"),
        ("memory://", "memory://"),
        ("standfast.db", "standfast.db"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    """Host, path and harmless parameters stay; passwords, tokens and unknown parameters go."""
    assert mask_url(url) == shown


HIDDEN = {
    "authToken",
    "listen",
    "sentinel_password",
    "authMechanism",
    "authSource",
    "directConnection",
    "tlsCAFile",
    "tlsCertificateKeyFile",
}
OPTIONS = {
    *(name for each in (cloudflare, dynamodb, etcd, libsql, mongodb) for name in each.OPTION_NAMES),
    *(name for each in (mysql, postgresql, redis) for name in each.OPTION_NAMES),
    *SQLITE_OPTIONS,
}


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_an_option_of_a_store_is_shown_unless_it_may_be_a_secret(option: str) -> None:
    """An error about ``?grace=soon`` must show what was written; a new option is shown, or listed here as hidden."""
    assert mask_url(f"x://h/db?{option}=7") == f"x://h/db?{option}={'***' if option in HIDDEN else '7'}"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2",
        "postgresql://u:hun/hunter2@h/db",
        "postgresql://u:hun?hunter2@h/db",
        "postgresql://u:hun#hunter2@h/db",
        "postgresql://u:hun@hunter2@h/db",
        "postgresql://u:hun\nhunter2@h/db",
        "postgresql://u:hun hunter2@h/db",
        "postgresql:///u:hunter2@h/db",
        "postgresql:u:hunter2@h/db",
        "postgresql://h/db#hunter2",
        "postgresql://h/db?hunter2",
        "postgresql://h/db?pass%77ord=hunter2",
        "postgresql://h/db?sslmode=require%0ahunter2",
        "postgresql://h/db?timeout=5 hunter2",
        "postgresql://u:hunter2@h/db?a=b@c",
        "postgresql://h/db?password=b@hunter2",
        "postgresql://h/db?a=b#c@hunter2",
        "postgresql://u:hunter2@",
        "://u:hunter2@h",
        "u:hunter2@h/db",
        "host=h user=u password=hunter2",
        "redis://u:hunter2:more@h",
        "sqlite:///u:hunter2@h/db",
        "sqlite://u:hunter2@h/db?network=allow",
    ],
)
def test_a_malformed_address_loses_more_rather_than_less(url: str) -> None:
    """A secret does not slip out of an address that no parser would accept."""
    assert CANARY not in mask_url(url)


@given(st.from_regex(r"[a-z]{1,8}://[ -~]{0,40}", fullmatch=True), st.integers(0, 40))
def test_masking_twice_is_masking_once(url: str, cut: int) -> None:
    """An error that is copied or pickled masks its address again, and nothing changes."""
    once = mask_url(url[:cut] + url)
    assert mask_url(once) == once


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"), min_size=4),
    st.sampled_from(SHAPES),
)
def test_no_password_is_ever_shown(password: str, shape: str) -> None:
    """Whatever characters a password is made of, the shown address does not depend on it."""
    shown = mask_url(shape.format(password))
    assert password not in shown or password in shape


def test_a_long_address_is_cut() -> None:
    """An address of a megabyte does not flood the log."""
    assert len(mask_url("redis://" + "h" * 1_000_000)) < 400


@pytest.mark.parametrize(
    "message",
    [
        'could not connect to "postgresql://u:hunter2@h/db": refused',
        "bad option password=hunter2 in the address",
        "PASSWORD : 'hunter2'",
        'options {"api_key": "hunter2"}',
        "access_token=hunter2, retry",
        "client_secret=hunter2",
        "netloc 'u:hunter2@h' contains invalid characters",
    ],
)
def test_a_driver_that_repeats_a_secret_is_masked(message: str) -> None:
    """Addresses and password pairs inside free text lose their secrets."""
    assert CANARY not in mask_text(message)


def test_ordinary_text_is_left_as_it_is() -> None:
    """A message without secrets is not touched."""
    message = 'FATAL: password authentication failed for user "x" (attempt 3 of 5)'
    assert mask_text(message) == message


@given(
    st.lists(
        st.sampled_from(["password=", "u:", "@h", "x://", "?a=", "'", '"', " ", "/", "\ud800", "a" * 1_995])
        | st.text(),
        max_size=8,
    ).map("".join)
)
def test_masking_a_message_twice_is_masking_it_once(text: str) -> None:
    """An error can be stored and raised again any number of times; its message is text of bounded length."""
    once = mask_message(text)
    assert mask_message(once) == once
    assert len(once.encode()) <= 8_000


def test_what_stands_behind_a_masked_secret_is_left_as_it_is() -> None:
    """A log line is put together from parts that are masked, and masked again as a whole: its quotes stay."""
    line = 'message="first time token=***" place="tr.py:13"'
    assert mask_text(line) == line
    assert CANARY not in mask_text(f"token=***{CANARY}")


@pytest.mark.parametrize("text", ["{}", 'event=slow-commit store="{}"', "cannot reach {}: no answer"])
def test_an_address_that_is_masked_keeps_its_scheme_and_user(text: str) -> None:
    """What is left of it says which store it is, however often it is masked; the second one in a text, too."""
    for url in ("mysql://app:***@db1:3306,db2:3306/prod?timeout=1s", "redis://:***@h:6379/0"):
        line = f"{text.format(url)} and {url}"
        assert mask_text(line) == line
        assert CANARY not in mask_text(line.replace("***@", f"***{CANARY}@"))


def test_data_is_masked_in_its_texts_and_by_the_names_of_its_fields() -> None:
    """Lists, tuples and objects are followed; numbers stay."""
    assert mask_data([{"api_key": "x"}, ("see a:hunter2@c",), 1]) == [{"api_key": "***"}, ["see ***@c"], 1]
    assert mask_data({"note": "x", "token": "x"}, str.upper) == {"note": "X", "token": "***"}


def test_a_long_text_in_data_is_masked_to_its_end_and_not_cut() -> None:
    """A program that reads a value gets all of it, where a message of an error has only its beginning."""
    text = "x" * 5_000
    assert mask_data([f"{text} token={CANARY}"]) == [f"{text} token=***"]
    assert len(mask_text(text)) < len(text)
