"""Options are checked when a lock is asked for, before anything is written, and a refusal says why."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import InvalidArgumentError, LeaseTooShortError
from standfast.keys import RecordKey
from tests.case_names import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NO_DURATIONS = [-1, math.nan, math.inf, -math.inf, True, "5", "five seconds", "-1s", "1 month", [], object()]


@pytest.fixture
async def space() -> AsyncIterator[sf.Space]:
    """A space whose locks are asked for."""
    async with sf.open("memory://") as opened:
        yield opened


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=shown)
@pytest.mark.parametrize("option", ["timeout", "lease", "max_hold"])
async def test_what_is_no_duration_is_refused(space: sf.Space, option: str, wrong: Any) -> None:
    """Negative, endless, not a number, without a unit, or nothing of the kind."""
    options: dict[str, Any] = {option: wrong}
    with pytest.raises(InvalidArgumentError, match=option):
        space.mutex("k").hold(**options)


@pytest.mark.parametrize("wrong", NO_DURATIONS, ids=shown)
@pytest.mark.parametrize("option", ["lease", "heartbeat"])
async def test_a_space_refuses_what_is_no_duration(option: str, wrong: Any) -> None:
    """When it is opened, before a store is."""
    options: dict[str, Any] = {option: wrong}
    with pytest.raises(InvalidArgumentError, match=option):
        sf.open("memory://", **options)


@pytest.mark.parametrize("lease", [90_000, 86_400.5])
async def test_milliseconds_are_not_taken_for_seconds(space: sf.Space, lease: float) -> None:
    """A bare number of more than a day is probably meant in milliseconds; with a unit it is taken at its word."""
    with pytest.raises(InvalidArgumentError, match="probably milliseconds"):
        space.mutex("k").hold(lease=lease)
    space.mutex("k").hold(lease=f"{lease} seconds")


@pytest.mark.parametrize("lease", [0, 0.05, "99ms", timedelta(milliseconds=50)])
async def test_a_lease_that_cannot_be_kept_is_refused(space: sf.Space, lease: Any) -> None:
    """The store says how short a lease may be."""
    with pytest.raises(LeaseTooShortError, match=r"the shortest is 0\.1 s"):
        space.mutex("k").hold(lease=lease)
    with pytest.raises(LeaseTooShortError):
        await sf.open("memory://", lease=lease)


@pytest.mark.parametrize("heartbeat", [0, 1.01, "2s"])
async def test_a_heartbeat_leaves_room_for_another(heartbeat: Any) -> None:
    """At most half of the lease, so that one that is lost can be made up for."""
    with pytest.raises(InvalidArgumentError, match="at most half of the lease of 2 s"):
        sf.open("memory://", lease=2, heartbeat=heartbeat)


async def test_a_heartbeat_of_half_a_lease_is_fine() -> None:
    """The limit itself is allowed."""
    async with sf.open("memory://", lease=2, heartbeat=1) as space, space.mutex("k").hold() as hold:
        assert not hold.is_lost


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("owner", 7), ("owner", "x" * 201), ("owner", "a\nb"), ("note", b"x"), ("note", "x" * 201), ("note", "\0")],
)
async def test_what_is_no_short_text_is_refused(space: sf.Space, option: str, wrong: Any) -> None:
    """Owners and notes are shown to people, on one line."""
    options: dict[str, Any] = {option: wrong}
    with pytest.raises(InvalidArgumentError, match=f"the {option} of a lock"):
        space.mutex("k").hold(**options)


@pytest.mark.parametrize("wrong", ["ignore", None, 1, ["cancel"]])
async def test_what_happens_on_loss_is_one_of_two(space: sf.Space, wrong: Any) -> None:
    """The body is cancelled, or told."""
    with pytest.raises(InvalidArgumentError, match="'cancel' or 'tell'"):
        space.mutex("k").hold(on_lost=wrong)


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "mode lock"])
async def test_an_unknown_option_is_refused(space: sf.Space, kind: str) -> None:
    """A misspelt one would be forgotten silently; the error lists what there is."""
    hold: Any = {
        "mutex": space.mutex("k").hold,
        "semaphore": space.semaphore("k", permits=2).hold,
        "mode lock": lambda **options: space.mode_lock("k", modes=("read",)).hold("read", **options),
    }[kind]
    with pytest.raises(InvalidArgumentError, match="there are lease, max_hold, note, on_lost, owner, timeout"):
        hold(time_out=3)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3", None])
async def test_what_is_no_number_of_permits_is_refused(space: sf.Space, wrong: Any) -> None:
    """As the size of a semaphore, as a weight, and when it is resized."""
    with pytest.raises(InvalidArgumentError):
        space.semaphore("k", permits=wrong)
    with pytest.raises(InvalidArgumentError):
        space.semaphore("k", permits=3).hold(wrong)
    with pytest.raises(InvalidArgumentError):
        await space.semaphore("k", permits=3).resize(wrong)


@pytest.mark.parametrize("wrong", ["read", ("",), (1,)])
async def test_what_are_no_modes_is_refused(space: sf.Space, wrong: Any) -> None:
    """A text alone would be taken for its letters."""
    with pytest.raises(InvalidArgumentError, match="modes"):
        space.mode_lock("k", modes=wrong)
    with pytest.raises(InvalidArgumentError, match="modes"):
        space.mode_lock("k")


async def test_nothing_is_written_before_a_block_is_entered(space: sf.Space) -> None:
    """Asking for a lock only names it."""
    space.mutex("k").hold(timeout="5s", owner="me", note="for a while")
    page = await space.scan(*RecordKey("default", "default").within(), limit=10)
    assert page.records == {}
