"""Where blocking would do harm, or could not work, it is refused with what to do instead."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast import blocking
from standfast.errors import InvalidArgumentError, InvalidUrlError, UsageError
from standfast.stores import Decision

if TYPE_CHECKING:
    from standfast.blocking import Space


def patched_by(monkeypatch: pytest.MonkeyPatch, home: str, question: str, *modules: str) -> None:
    """Pretend that a library has replaced some modules."""
    module = ModuleType(home)
    setattr(module, question, lambda name: name in modules)
    monkeypatch.setitem(sys.modules, home, module)


async def test_opening_inside_an_event_loop_is_refused() -> None:
    """It would stand still; the message names the async way."""
    with pytest.raises(UsageError, match=r"async with standfast\.open"):
        blocking.open("memory://")


def test_using_a_space_inside_an_event_loop_is_refused(space: Space) -> None:
    """Neither a lock nor a read nor closing may block a loop."""

    async def use() -> None:
        for attempt in (lambda: space.mutex("m"), space.read, space.close):
            with pytest.raises(UsageError):
                attempt()

    asyncio.run(use())


def test_a_thread_beside_the_loop_may_block(space: Space) -> None:
    """``asyncio.to_thread`` is the way from a coroutine to blocking code."""

    def work() -> int:
        with space.mutex("m").hold() as hold:
            return hold.fence

    assert asyncio.run(asyncio.to_thread(work)) > 0


def test_a_decision_that_calls_back_is_refused(space: Space) -> None:
    """What runs on Standfast's own thread cannot wait for that thread; without the refusal it would hang for ever."""

    def decide(_seen: object) -> Decision[None]:
        space.read(space.key("note"))
        return Decision(None)

    with pytest.raises(UsageError):
        space.update([space.key("note")], decide)


@pytest.mark.parametrize(
    ("home", "question", "module"),
    [
        ("gevent.monkey", "is_module_patched", "threading"),
        ("gevent.monkey", "is_module_patched", "select"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
    ],
)
def test_green_threads_are_refused(monkeypatch: pytest.MonkeyPatch, home: str, question: str, module: str) -> None:
    """Under gevent and eventlet nothing runs beside the code; the message says what to use."""
    patched_by(monkeypatch, home, question, module)

    with pytest.raises(UsageError, match="gthread") as refused:
        blocking.open("memory://")

    assert refused.value.what == home.partition(".")[0]
    assert module in refused.value.problem


def test_a_library_that_has_patched_nothing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """That gevent is installed and imported does no harm."""
    patched_by(monkeypatch, "gevent.monkey", "is_module_patched", "subprocess")

    blocking.open("memory://").close()


def test_bad_arguments_are_told_by_opening() -> None:
    """Opening answers as that of an async space does."""
    with pytest.raises(InvalidArgumentError):
        blocking.open("memory://", lease="soon")
    with pytest.raises(InvalidUrlError):
        blocking.open("nowhere://")


def test_a_password_is_not_shown() -> None:
    """The space is shown without the secrets of its URL."""
    with blocking.open("memory://secrets", namespace="prod") as space:
        assert repr(space) == "<blocking Space prod/default on memory://secrets>"
        assert isinstance(space.run(asked), sf.Space)


async def asked(space: sf.Space) -> sf.Space:
    """Return what async code is given."""
    return space
