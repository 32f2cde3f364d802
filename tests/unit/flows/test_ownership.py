"""Whose conversation a session is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.errors import ForbiddenError, InvalidArrivalError
from holdfast.flows.ownership import check, checked_session, claim, is_made_here, new_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADA, EVE, NOBODY = hf.Principal("acme", "ada"), hf.Principal("acme", "eve"), hf.Principal("acme")


@pytest.fixture
async def space() -> AsyncIterator[hf.Space]:
    """A space in memory."""
    async with hf.open("memory://") as opened:
        yield opened


async def test_a_session_belongs_to_the_first_who_claims_it(space: hf.Space) -> None:
    """The owner may claim it again; nobody else may claim or look at it, with a name or without."""
    await claim(space, ADA, "s")
    await claim(space, ADA, "s")
    for stranger in (EVE, NOBODY):
        for ask in (claim, check):
            with pytest.raises(ForbiddenError):
                await ask(space, stranger, "s")


async def test_of_many_who_claim_a_session_at_once_one_has_it(space: hf.Space) -> None:
    """The others are refused."""
    users = [hf.Principal("acme", f"user-{number}") for number in range(10)]
    answers = await asyncio.gather(*(claim(space, user, "s") for user in users), return_exceptions=True)
    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, ForbiddenError) for answer in answers) == 9


async def test_a_session_of_another_tenant_is_another_session(space: hf.Space) -> None:
    """The same id in two tenants is no collision, and tells nothing."""
    await claim(space, ADA, "s")
    await claim(space, hf.Principal("other", "eve"), "s")


async def test_looking_claims_nothing(space: hf.Space) -> None:
    """A session that nobody has is free for the first who writes."""
    await check(space, EVE, "s")
    await claim(space, ADA, "s")


async def test_whoever_knows_the_id_of_a_nameless_session_may_use_it(space: hf.Space) -> None:
    """So somebody who signs in goes on with the conversation."""
    session = new_session()
    await claim(space, NOBODY, session)
    await claim(space, ADA, session)
    await claim(space, NOBODY, session)


def test_ids_that_are_made_here_cannot_be_guessed() -> None:
    """128 random bits, unlike each other."""
    made = {new_session() for _ in range(100)}
    assert len(made) == 100
    assert all(is_made_here(each) and len(each) == 32 for each in made)


@pytest.mark.parametrize("session", ["", "s", "A" * 32, "a" * 31])
def test_somebody_without_a_name_cannot_choose_an_id(session: str) -> None:
    """Others could guess it."""
    with pytest.raises(InvalidArrivalError):
        checked_session(NOBODY, session)


@pytest.mark.parametrize("session", ["", "a\nb", "x" * 201])
def test_an_id_that_cannot_be_kept_is_refused(session: str) -> None:
    """Whoever chooses it."""
    with pytest.raises(InvalidArrivalError):
        checked_session(ADA, session)
