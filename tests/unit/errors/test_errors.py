"""Errors: their messages say what to do, and never show a secret."""

from __future__ import annotations

import traceback

import pytest

from standfast import errors
from standfast.errors import (
    DuplicateFamilyError,
    FormatTooNewError,
    HoldTimeoutError,
    InvalidUrlError,
    KeyTooLongError,
    MissingExtraError,
    NotAKeyError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    UnknownModeError,
)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NotAKeyError("the text 'x'"), 'FAMILY = KeyFamily("what-it-protects")'),
        (DuplicateFamilyError("repo", "a.py:1", "b.py:2"), "declared at a.py:1 and again at b.py:2"),
        (DuplicateFamilyError("repo", "a.py:1", "a.py:1"), "other modes or order; restart"),
        (KeyTooLongError(1_200, 1_000), "1,200 bytes encoded, at most 1,000"),
        (FormatTooNewError("the record", 3, 1), "upgrade standfast"),
        (UnknownModeError("graph", None, ("pull", "observe")), "choose one of 'pull', 'observe'"),
        (UnknownModeError("graph", "pull", ()), "declares no modes"),
        (HoldTimeoutError("repo(x)", 1.5, ()), "within 1.5 s; held by earlier waiters"),
        (MissingExtraError("redis", "standfast[redis]"), 'pip install "standfast[redis]"'),
        (OutcomeUnknownError("memory://", "the reply was lost", "a7"), "settle attempt 'a7'"),
    ],
)
def test_the_message_says_what_to_do(error: Exception, advice: str) -> None:
    """Who reads the message knows the next step."""
    assert advice in str(error)


@pytest.mark.parametrize("kind", [InvalidUrlError, StoreError, StoreUnavailableError, OutcomeUnknownError])
def test_an_error_masks_the_address_it_is_given(kind: type[StoreError]) -> None:
    """No caller can forget to: message, repr, facts and traceback are free of the password."""
    error = kind("postgresql://app:hunter2@db/prod?sslpassword=hunter2", 'driver says: "redis://:hunter2@h" refused')
    shown = [str(error), repr(error), str(vars(error)), str(error.args), *traceback.format_exception(error)]
    assert not [text for text in shown if "hunter2" in text]
    assert "app:***@db/prod" in str(error)


def test_an_unrelated_name_is_not_masked() -> None:
    """A store that is named by a path or a word is shown as it is."""
    assert str(StoreError("sqlite:///data/jobs.db", "disk full")) == "sqlite:///data/jobs.db: disk full"


def test_users_see_one_module() -> None:
    """Wherever an error is written, its name is ``standfast.errors.X``."""
    assert {getattr(errors, name).__module__ for name in errors.__all__} == {"standfast.errors"}
