"""What a server says becomes the error that says what to do, on old servers and new ones."""

from __future__ import annotations

import pytest
from redis import exceptions

from standfast import errors
from standfast.stores.address import Address
from standfast.stores.redis.connection import read_options, translate

NAME = "redis://host"


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (exceptions.OutOfMemoryError("command not allowed"), errors.StoreFullError),
        (exceptions.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), errors.StoreFullError),
        (
            exceptions.ResponseError("Error running script (call to f_12): @user_script:9: -OOM command not allowed"),
            errors.StoreFullError,
        ),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), errors.StoreReadOnlyError),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), errors.StoreFullError),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), errors.StoreUnavailableError),
        (exceptions.BusyLoadingError("dataset in memory"), errors.StoreUnavailableError),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), errors.StoreBusyError),
        (exceptions.AuthenticationError("invalid username-password pair"), errors.UnsuitableStoreError),
        (exceptions.NoPermissionError("no permissions to run"), errors.UnsuitableStoreError),
        (exceptions.ResponseError("ACL failure in script: User x has no permissions"), errors.UnsuitableStoreError),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), errors.StoreCorruptError),
        (exceptions.ClusterDownError("Hash slot not served"), errors.StoreUnavailableError),
        (exceptions.ResponseError("something new"), errors.StoreError),
    ],
)
def test_each_refusal_has_its_error(problem: Exception, expected: type[errors.StoreError]) -> None:
    """By the driver's class or by the code in the text."""
    assert type(translate(NAME, problem)) is expected


def test_a_secret_in_what_the_server_says_is_masked() -> None:
    """Whatever it repeats of what it was sent."""
    problem = exceptions.ResponseError("cannot reach redis://me:hunter2@other, password=hunter2")

    assert "hunter2" not in str(translate(NAME, problem))


def test_who_gave_no_password_is_not_told_that_it_was_wrong() -> None:
    """The driver has one error for both."""
    assert "none was given" in str(translate(NAME, exceptions.AuthenticationError("Authentication required.")))


def test_a_url_of_sentinels_names_them_the_primary_and_its_database() -> None:
    """Ports are those that sentinels have, unless they are named."""
    options = read_options(Address("rediss+sentinel://:hunter2@one,two:1,three/main/3?replicas=2"))

    assert options.hosts == (("one", 26379), ("two", 1), ("three", 26379))
    assert (options.sentinel, options.database, options.replicas) == ("main", 3, 2)
    assert options.tls is not None
    assert read_options(Address("valkey+sentinel://one/main")).database == 0


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://one,two", "what they call the primary"),
        ("redis+sentinel://one/main/first", "the database is a number"),
        ("redis+sentinel://one/main/0/1", "what they call the primary"),
        ("redis+sentinel://one/main?cluster=true", "a cluster has no sentinels"),
        ("redis://one?sentinel_password=hunter2", "are for redis.sentinel://"),
        ("redis+sentinel://one/main?sentinel_auth=true&sentinel_user=it", "a password of their own, or"),
    ],
)
def test_a_url_of_sentinels_that_cannot_be_used_is_refused(url: str, problem: str) -> None:
    """With the form to type."""
    with pytest.raises(errors.InvalidUrlError, match=problem):
        read_options(Address(url))
