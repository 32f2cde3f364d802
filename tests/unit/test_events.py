"""Events: frozen facts, and hooks that cannot disturb the work."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

import pytest

from standfast import events
from standfast.clock import Instant
from standfast.events import NO_HOOKS, Event, HookFailed, Hooks, HookSlow, Swept

if TYPE_CHECKING:
    from collections.abc import Iterator

SWEPT = Swept(at=Instant(1), store="memory://", seconds=0.5, removed=3)


def fail(_event: Event) -> NoReturn:
    """Fail with something that must not be logged."""
    raise ValueError("hunter2")


def test_an_event_cannot_be_changed() -> None:
    """A hook cannot alter what the next hook sees."""
    with pytest.raises(AttributeError):
        SWEPT.removed = 4  # type: ignore[misc]  # what is tested


def test_every_event_says_when_and_how_serious() -> None:
    """All events share a root, carry ``at``, and have a level that logging knows."""
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    assert len(kinds) > 8
    for kind in kinds:
        assert "at" in kind.__struct_fields__
        assert kind.level in {"debug", "info", "warning", "error"}
        assert kind.__doc__


def test_every_hook_is_told_in_order() -> None:
    """Hooks hear the same event, one after the other."""
    heard: list[tuple[str, Event]] = []
    hooks = Hooks([lambda event: heard.append(("a", event)), lambda event: heard.append(("b", event))])
    hooks.emit(SWEPT)
    assert heard == [("a", SWEPT), ("b", SWEPT)]


def test_nobody_listening_is_false() -> None:
    """Who has an event to tell can skip making it."""
    assert not NO_HOOKS
    assert Hooks([print])


def test_a_hook_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The caller goes on, later hooks are told, and the log has one line without the error's text."""
    heard: list[Event] = []
    hooks = Hooks([fail, heard.append])
    for _ in range(3):
        hooks.emit(SWEPT)
    assert heard.count(SWEPT) == 3
    [record] = caplog.records
    assert "test_events.fail raised ValueError" in record.getMessage()
    assert "hunter2" not in caplog.text


def test_the_other_hooks_hear_of_a_failure_once() -> None:
    """A failing hook is itself an event, which names the hook and the place."""
    heard: list[Event] = []
    hooks = Hooks([fail, heard.append])
    hooks.emit(SWEPT)
    hooks.emit(SWEPT)
    [failure] = [event for event in heard if isinstance(event, HookFailed)]
    assert (failure.hook.endswith("test_events.fail"), failure.error) == (True, "ValueError")
    assert failure.place.startswith(__file__)


def test_hooks_that_fail_at_each_others_failures_come_to_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """Two broken hooks are reported once each."""

    def fail_too(_event: Event) -> NoReturn:
        raise KeyError

    Hooks([fail, fail_too]).emit(SWEPT)
    assert len(caplog.records) == 2


def test_a_hook_cannot_cancel_the_work() -> None:
    """A hook that raises a cancellation or an exit of a generator is a failing hook like any other."""

    def cancel(_event: Event) -> NoReturn:
        raise asyncio.CancelledError

    Hooks([cancel]).emit(SWEPT)


def test_a_request_to_end_the_process_passes_a_hook() -> None:
    """Control-C while a hook runs is not swallowed."""

    def interrupt(_event: Event) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Hooks([interrupt]).emit(SWEPT)


def test_a_slow_hook_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Who holds up the work is named in the log, and to the other hooks."""
    ticks: Iterator[float] = iter(range(100))
    monkeypatch.setattr(events, "monotonic", lambda: next(ticks))
    heard: list[Event] = []

    def dawdle(_event: Event) -> None: ...

    hooks = Hooks([dawdle, heard.append])
    hooks.emit(SWEPT)
    hooks.emit(SWEPT)
    assert [event.hook for event in heard if isinstance(event, HookSlow)] == [f"{__name__}.{dawdle.__qualname__}"]
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 2  # dawdle and the list's append


def test_an_object_is_named_by_its_class() -> None:
    """A hook that is an object with ``__call__`` is shown by its type."""

    class Broken:
        def __call__(self, _event: Event, /) -> None:
            raise TypeError

    heard: list[Event] = []
    Hooks([Broken(), heard.append]).emit(SWEPT)
    assert isinstance(heard[0], HookFailed)
    assert heard[0].hook.endswith("Broken")
