"""How much each user takes of a chat."""

from __future__ import annotations

import pytest

from standfast.errors import TooManyRequestsError
from standfast.flows.request import Principal
from standfast.web.chat import REMEMBERED, ChatLimits, Guests
from standfast.web.limits import caller_of

ADA = caller_of(Principal("acme", "ada"), "192.0.2.1")


def test_a_user_is_the_same_from_every_address() -> None:
    """Who has no name is told apart by the address instead."""
    assert caller_of(Principal("acme", "ada"), "192.0.2.2") == ADA
    assert caller_of(Principal("acme"), "192.0.2.1") != caller_of(Principal("acme"), "192.0.2.2")


def test_messages_come_at_a_rate_after_a_burst() -> None:
    """Each second makes room for as many as the rate says, and the error says when."""
    time = [0.0]
    guests = Guests(ChatLimits(rate=2.0, burst=3), lambda: time[0])
    for _ in range(3):
        guests.write(ADA)
    with pytest.raises(TooManyRequestsError) as caught:
        guests.write(ADA)
    assert caught.value.retry_after == 0.5
    time[0] = 0.5
    guests.write(ADA)
    with pytest.raises(TooManyRequestsError):
        guests.write(ADA)


def test_a_connection_that_ends_makes_room() -> None:
    """Also if it ends with an error."""
    guests = Guests(ChatLimits(connections=1))
    with pytest.raises(KeyError), guests.connected(ADA):
        raise KeyError
    with guests.connected(ADA), pytest.raises(TooManyRequestsError), guests.connected(ADA):
        pass
    assert not guests._open._open


def test_only_so_many_users_are_remembered() -> None:
    """Nobody fills the memory by coming from many addresses."""
    guests = Guests(ChatLimits())
    for number in range(REMEMBERED + 10):
        guests.write(("acme", "", str(number)))
    assert len(guests._written) == REMEMBERED
