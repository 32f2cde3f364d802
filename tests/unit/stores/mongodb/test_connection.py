"""What errors of MongoDB and its driver mean."""

from __future__ import annotations

from pymongo import errors

from standfast.errors import StoreUnavailableError, UnsuitableStoreError
from standfast.stores.mongodb.connection import translate


def test_a_server_that_is_starting_is_unavailable_not_unsuitable() -> None:
    """Until it knows its set again, the driver takes it for one without sessions."""
    error = errors.ConfigurationError("Sessions are not supported by this MongoDB deployment")

    assert type(translate("mongodb://there", error)) is StoreUnavailableError


def test_an_address_that_the_driver_refuses_is_unsuitable() -> None:
    """Trying again would not help."""
    assert type(translate("mongodb://there", errors.ConfigurationError("no such option"))) is UnsuitableStoreError
