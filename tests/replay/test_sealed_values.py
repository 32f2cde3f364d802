"""Sealed values of every format ever written can be opened. The files here are never edited."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import pytest

from standfast.errors import BrokenSealError
from standfast.stores.encryption import Keyring

KEYRING: Final = Keyring({"golden": bytes(range(32))})
PLACE: Final = b"place\x00\x01golden\x00\x01"
EXPIRY: Final = 1_700_000_000_000_000


@pytest.mark.parametrize("number", [1, 2])
def test_a_value_that_was_sealed_once_can_be_opened_for_ever(number: int) -> None:
    """At a version after the one that it was written over, with its expiry, in its place, and in no other."""
    sealed = base64.b64decode((Path(__file__).parent / f"sealed_format_{number}.txt").read_bytes())

    assert KEYRING.open(sealed, PLACE, version=8, expires_at=EXPIRY) == b'1:{"secret":"hunter2"}'
    with pytest.raises(BrokenSealError):
        KEYRING.open(sealed, b"elsewhere", version=8, expires_at=EXPIRY)
