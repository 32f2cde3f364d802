"""Whose conversation a session is."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import ForbiddenError, InvalidInputError
from standfast.flows.tenants import REMEMBERED, OwnerRecord, Owners, checked_session, is_made_here, new_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ADA, EVE, NOBODY = sf.Principal("acme", "ada"), sf.Principal("acme", "eve"), sf.Principal("acme")


@pytest.fixture
async def owners() -> AsyncIterator[Owners]:
    """Owners that are written in memory."""
    async with sf.open("memory://") as space:
        yield Owners(space)


async def test_a_session_belongs_to_the_first_who_claims_it(owners: Owners) -> None:
    """The owner may claim it again; nobody else may claim or look at it, with a name or without."""
    await owners.claim(ADA, "s")
    await owners.claim(ADA, "s")
    for stranger in (EVE, NOBODY):
        for ask in (owners.claim, owners.check):
            with pytest.raises(ForbiddenError):
                await ask(stranger, "s")


async def test_of_many_who_claim_a_session_at_once_one_has_it(owners: Owners) -> None:
    """The others are refused."""
    users = [sf.Principal("acme", f"user-{number}") for number in range(10)]
    answers = await asyncio.gather(*(owners.claim(user, "s") for user in users), return_exceptions=True)
    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, ForbiddenError) for answer in answers) == 9


async def test_a_session_of_another_tenant_is_another_session(owners: Owners) -> None:
    """The same id in two tenants is no collision, and tells nothing."""
    await owners.claim(ADA, "s")
    await owners.claim(sf.Principal("other", "eve"), "s")


async def test_looking_claims_nothing(owners: Owners) -> None:
    """A session that nobody has is free for the first who writes."""
    await owners.check(EVE, "s")
    await owners.claim(ADA, "s")


async def test_whoever_knows_the_id_of_a_nameless_session_may_use_it(owners: Owners) -> None:
    """So somebody who signs in goes on with the conversation."""
    session = new_session()
    await owners.claim(NOBODY, session)
    await owners.claim(ADA, session)
    await owners.claim(NOBODY, session)


async def test_what_is_known_is_known_without_asking(owners: Owners) -> None:
    """The owner of a session that was seen is remembered, and so it is that nobody else is."""
    await owners.claim(ADA, "s")
    assert owners.are_known(ADA, "s")
    assert not owners.are_known(EVE, "s")
    assert not owners.are_known(sf.Principal("other", "ada"), "s")
    assert not owners.are_known(ADA, "another")


async def test_only_so_many_owners_are_remembered(owners: Owners) -> None:
    """The oldest are asked for again."""
    for number in range(REMEMBERED):
        owners._known["acme", f"s-{number}"] = OwnerRecord("ada"), 0.0
    await owners.claim(ADA, "the last")
    assert len(owners._known) == REMEMBERED


@pytest.mark.parametrize(
    ("transport", "is_let_in"), [("http", False), ("mcp", False), ("chat", False), ("webhook", True)]
)
async def test_a_stranger_gets_no_place_in_the_line_of_a_session(transport: Any, *, is_let_in: bool) -> None:
    """Whoever speaks for itself is compared with the owner; what comes by a webhook speaks for many."""
    flow, ran = sf.Flow("support"), list[str]()

    @flow.action(concurrency="queue")
    async def respond(request: sf.Request) -> None:
        ran.append(request.user)

    async with sf.Dispatcher("memory://", flows=[flow]) as dispatcher:
        asked = {"flow": "support", "action": "respond", "session": "s", "transport": transport}
        await (await dispatcher.dispatch(sf.Call(principal=ADA, **asked))).result()
        with nullcontext() if is_let_in else pytest.raises(ForbiddenError):
            await (await dispatcher.dispatch(sf.Call(principal=EVE, **asked))).result()
    assert ran == (["ada", "eve"] if is_let_in else ["ada"])


def test_ids_that_are_made_here_cannot_be_guessed() -> None:
    """128 random bits, unlike each other."""
    made = {new_session() for _ in range(100)}
    assert len(made) == 100
    assert all(is_made_here(each) and len(each) == 32 for each in made)


@pytest.mark.parametrize("session", ["", "s", "A" * 32, "a" * 31])
def test_somebody_without_a_name_cannot_choose_an_id(session: str) -> None:
    """Others could guess it."""
    with pytest.raises(InvalidInputError):
        checked_session(NOBODY, session)


@pytest.mark.parametrize("session", ["", "a\nb", "x" * 201])
def test_an_id_that_cannot_be_kept_is_refused(session: str) -> None:
    """Whoever chooses it."""
    with pytest.raises(InvalidInputError):
        checked_session(ADA, session)
