"""Errors: their messages say what to do, and never show a secret."""

from __future__ import annotations

import traceback

import pytest
from msgspec import Raw

from standfast import errors
from standfast.errors import (
    ArgumentTypeError,
    DeclarationError,
    FormatTooNewError,
    HoldTimeoutError,
    InvalidArgumentError,
    InvalidUrlError,
    MissingExtraError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    UsageError,
    WaitCycleError,
)
from standfast.errors.retired import RETIRED
from standfast.workflows.failures import Failure, KnownErrors, describe, restore


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ArgumentTypeError("a Key", "the text 'x'", "make one"), "expected a Key, got the text 'x'; make one"),
        (DeclarationError("repo", "it is declared twice"), "repo: it is declared twice"),
        (DeclarationError("the zone", "write a name", "7"), "7 cannot be the zone: write a name"),
        (InvalidArgumentError("a key", "it is too long"), "a key: it is too long"),
        (FormatTooNewError("the record", 3, 1), "upgrade standfast"),
        (InvalidArgumentError("the lease", "it must be positive", "-1"), "-1 cannot be the lease: it must be positive"),
        (UsageError("the store", "is closed", "open it"), "the store is closed; open it"),
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


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_stored_error_of_a_class_that_is_gone_comes_back(name: str) -> None:
    """It is one of the class that took its place, with its old facts and message, also when it is stored again."""
    state = Raw(b'{"what":"the lease","old_fact":3}')
    stored = Failure(f"standfast.errors.{name}", "the lease is odd", args=Raw(b'["the lease",3]'), state=state)
    restored = restore(stored, KnownErrors())
    again = restore(describe(restored, KnownErrors()), KnownErrors())
    for error in (restored, again):
        assert type(error) is RETIRED[name]
        assert str(error) == "the lease is odd"
        assert vars(error)["old_fact"] == 3


def test_a_list_of_facts_is_shown_the_same_after_it_was_stored() -> None:
    """JSON has no tuples, and a stored error has to say what it said."""
    error = WaitCycleError("x", "here", ("one waits for y", "two waits for x"))
    restored = restore(describe(error, KnownErrors()), KnownErrors())
    assert type(restored) is WaitCycleError
    assert str(restored) == str(error)
