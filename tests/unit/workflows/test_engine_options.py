"""What an engine is made with: how its store is opened, and what its worker takes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import standfast as sf
from standfast import blocking
from standfast.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.events import Event

ANN = sf.admin.Actor("ann")


class Heard:
    """A hook that hears of everything."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def wants(self, kind: type[Event]) -> bool:
        """Return True."""
        return bool(kind)

    def __call__(self, event: Event) -> None:
        """Note the kind of an event."""
        self.names.append(type(event).__name__)


@sf.step
async def one() -> int:
    """Return one."""
    return 1


@sf.workflow
async def counts(ctx: sf.Context) -> int:
    """Take a step."""
    return await ctx.step(one)


async def test_an_engine_opens_and_closes_what_it_is_given_unopened(tmp_path: Path) -> None:
    """With all that was said to ``sf.open``, its own hooks besides, and as often as it is opened."""
    url, store, runs = f"sqlite:///{tmp_path}/a.db", Heard(), Heard()
    opening = sf.open(url, tenant="t", actor=ANN, hooks=[store])
    engine = sf.Engine(opening, workflows=[counts], hooks=[runs])
    assert engine.address == url
    for _ in range(2):
        async with engine:
            assert (engine.space.tenant, engine.actor) == ("t", ANN)
            assert await (await engine.start(counts)).result() == 1
    assert "Committed" in store.names
    assert not any(name.startswith("Run") for name in store.names)
    assert {*runs.names} > {*store.names}


def test_a_blocking_engine_takes_the_same(tmp_path: Path) -> None:
    """It is opened when it is first used, and the store is closed with it."""
    engine = blocking.Engine(sf.open(f"sqlite:///{tmp_path}/a.db", tenant="t", actor=ANN), workflows=[counts])
    with engine:
        assert (engine.space.tenant, engine.actor) == ("t", ANN)
        assert engine.start(counts).result() == 1


@pytest.mark.parametrize("given", [{"namespace": "prod"}, {"tenant": "t"}, {"lease": "5s"}], ids=str)
async def test_what_a_space_says_is_not_said_again(given: dict[str, Any]) -> None:
    """It would be ignored."""
    for store in (sf.open("memory://"), await sf.open("memory://")):
        with pytest.raises(DeclarationError, match=r"sf\.open"):
            sf.Engine(store, **given)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "8"], ids=str)
@pytest.mark.parametrize("name", ["max_loaded", "threads", "quarantine_after"])
def test_what_a_worker_takes_on_is_a_whole_number(name: str, given: Any) -> None:
    """Refused where it is written, by its name."""
    with pytest.raises(DeclarationError, match=name):
        sf.admin.WorkerLimits(**{name: given})


def test_what_a_worker_takes_on_is_one_value() -> None:
    """A number in its place is refused, with what to write."""
    with pytest.raises(DeclarationError, match=r"sf\.admin\.WorkerLimits"):
        sf.Engine("memory://", worker=cast("Any", 8))
