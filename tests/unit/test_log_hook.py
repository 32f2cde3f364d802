"""Logs: one safe line an event, without values, keys or secrets."""

from __future__ import annotations

import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import Instant
from standfast.events import (
    Checkpointed,
    Event,
    LockOrderInverted,
    OutcomeSettled,
    OutcomeUnknown,
    Requeued,
    SlowCommit,
)
from standfast.keys import Key, KeyFamily, RecordKey
from standfast.log_hook import LogHook, as_json, as_logfmt, event_name, key_digest

PERSON = KeyFamily("person")
AT = Instant(1)
INVERTED = LockOrderInverted(
    at=AT,
    held=PERSON("Ada Lovelace"),
    wanted=PERSON("Charles Babbage"),
    held_from="a.py:1",
    wanted_from="a.py:2",
    opposite_held_from="b.py:1",
    opposite_wanted_from="b.py:2",
)


class Visit(Event, frozen=True, kw_only=True):
    """An event of the test, with fields of every kind."""

    key: Key | RecordKey | None = None
    places: tuple[str, ...] = ()
    thing: object = None


def logged(caplog: pytest.LogCaptureFixture, event: Event, hook: LogHook | None = None) -> str:
    """Return the line that an event becomes."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "standfast"):
        (hook or LogHook())(event)
    [record] = caplog.records
    return record.getMessage()


def test_an_event_is_one_line_of_pairs(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the event and its facts."""
    line = logged(caplog, SlowCommit(at=AT, store="sqlite:///jobs.db", seconds=1.25, riders=8))
    assert line == "event=slow-commit store=sqlite:///jobs.db seconds=1.25 riders=8"


def test_an_event_can_be_json(caplog: pytest.LogCaptureFixture) -> None:
    """The JSON style holds the same facts."""
    line = logged(caplog, OutcomeSettled(at=AT, store="memory://", attempt="a b", written=True), LogHook(style="json"))
    assert json.loads(line) == {"event": "outcome-settled", "store": "memory://", "attempt": "a b", "written": True}


def test_the_facts_are_attached_to_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that takes structure finds it under one name."""
    logged(caplog, Visit(at=AT, places=("a", "b")))
    assert vars(caplog.records[0])["standfast"] == {"event": "visit", "places": ["a", "b"]}


def test_an_event_is_logged_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    """What is below the logger's level is not even formatted."""
    caplog.set_level(logging.INFO, "standfast")
    LogHook()(Checkpointed(at=AT, store="memory://", seconds=0.1, pages=1, remaining=0))
    assert caplog.records == []
    LogHook()(INVERTED)
    assert caplog.records[0].levelno == logging.WARNING


def test_keys_are_digests_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """A key often is a customer's name: only its family, which is code, is shown."""
    line = logged(caplog, INVERTED)
    assert "Ada" not in line
    assert re.search(r"held=person\(#[0-9a-f]{16}\) wanted=person\(#[0-9a-f]{16}\)", line)
    assert "held=\"person('Ada Lovelace')\"" in logged(caplog, INVERTED, LogHook(show_keys=True))


def test_the_key_of_a_lock_is_a_digest_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """Keys of durable locks are text in events, and are hidden all the same."""
    event = Requeued(at=AT, key=str(PERSON("Ada Lovelace")))
    line = logged(caplog, event, LogHook(secret=b"s"))
    assert line == f"event=requeued key={key_digest(str(PERSON('Ada Lovelace')), b's')}"
    assert "Ada" not in line
    assert "Ada Lovelace" in logged(caplog, event, LogHook(show_keys=True))


def test_the_same_key_has_the_same_digest_and_another_key_another() -> None:
    """A key can be followed through the log without being known."""
    assert key_digest(PERSON("Ada")) == key_digest(PERSON("Ada")) != key_digest(PERSON("Eve"))
    assert key_digest(RecordKey("prod", "Ada")) != key_digest(RecordKey("prod", "Eve"))
    assert key_digest(PERSON()) == "person()"


def test_a_secret_changes_every_digest() -> None:
    """Without the secret, nobody can try out likely keys."""
    assert len({key_digest(PERSON("Ada"), secret) for secret in (b"", b"one", b"two", b"x" * 100)}) == 4


def test_addresses_lose_their_passwords(caplog: pytest.LogCaptureFixture) -> None:
    """An event that was given a raw address or a driver's message still shows no secret."""
    event = OutcomeUnknown(at=AT, store="redis://u:hunter2@h", attempt="7", problem="password=hunter2 refused")
    assert "hunter2" not in logged(caplog, event)
    assert "hunter2" not in str(vars(caplog.records[0])["standfast"])


def test_what_is_not_known_to_be_harmless_is_shown_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes, dicts and objects could hold anything, so nothing of them is shown."""
    for thing in (b"hunter2", {"x": "hunter2"}, ValueError("hunter2")):
        assert f'thing="<{type(thing).__name__}>"' in logged(caplog, Visit(at=AT, thing=thing))


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\nb", "\x1b[31mred", "a\x7fb", "a\x85b", "a\u2028b", "a\u202eb", 'a"b', "a=b", ""]
)
@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_nothing_in_a_name_can_forge_a_line(text: str, style: str, caplog: pytest.LogCaptureFixture) -> None:
    """Line ends, terminal colours, separators and quotes are escaped."""
    hook = LogHook(style="json" if style == "json" else "logfmt", show_keys=True)
    line = logged(caplog, Visit(at=AT, key=PERSON(text), places=(text,)), hook)
    assert line.isascii()
    assert line.isprintable()
    assert line.count("event") == 1


@given(st.text())
def test_any_text_can_be_read_back_from_the_log(text: str) -> None:
    """Escaping loses nothing, in either style."""
    assert json.loads(as_json({"x": text})) == {"x": text}
    line = as_logfmt({"x": text})
    value = line.removeprefix("x=")
    shown = value[1:-1].replace('\\"', '"').encode().decode("unicode_escape") if value.startswith('"') else value
    assert shown == text


def test_the_name_of_an_event_is_its_class_in_words() -> None:
    """Names in the log are lower case with dashes."""
    assert event_name(LockOrderInverted) == "lock-order-inverted"


def test_a_hook_shows_no_secret_of_its_own() -> None:
    """The digest's secret is not part of the repr."""
    assert repr(LogHook(secret=b"hunter2")) == "<LogHook to 'standfast'>"
