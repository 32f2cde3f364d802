"""What stops the code of a workflow, by design out of reach of ``except Exception``, and how its callers are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn, final

import msgspec
from msgspec import Struct

from standfast.errors import RunCancelledError, RunFailedError, RunTimedOutError
from standfast.workflows.failures import add_trace, restore

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.workflows.failures import Failure, KnownErrors
    from standfast.workflows.records import HistoryEvent
    from standfast.workflows.replay import Branch


# --- going on as a new run, with a short history -------------------------------------------------------------------


class ContinueAsNew(BaseException):
    """Ends a run and starts the next one of its chain in the same commit. Let it pass."""

    def __init__(self, packed: bytes) -> None:
        super().__init__("the run continues as a new one")
        self.packed = packed


def next_id(run_id: str) -> str:
    """Return the id of the run that comes after one: ``order-7``, then ``order-7~2``."""
    name, tilde, number = run_id.rpartition("~")
    return f"{name}~{int(number) + 1}" if tilde and number.isascii() and number.isdigit() else f"{run_id}~2"


# --- what is raised in a workflow's code to make it stop, by design out of reach of ``except Exception`` -----------


@final
class Unload(BaseException):
    """The run is taken out of memory. It goes on from its records when it is woken.

    Let it pass. Nothing that the context does after it is recorded, and nothing is released: code that catches it only
    delays it, and that is reported.
    """


SWALLOWED: Final = 1_000
"""Code that has caught that many is taken to do so for ever."""

SWALLOWED_PAUSE: Final = 1.0


async def unload_again(branch: Branch, tell: Callable[[], None]) -> NoReturn:
    """Raise :class:`Unload` once more. Code that catches it in a loop is told of, and gives way to everything else."""
    branch.refused += 1
    if branch.refused >= SWALLOWED:
        if branch.refused == SWALLOWED:
            tell()
        await asyncio.sleep(SWALLOWED_PAUSE)
    raise Unload


class RunCancelled(asyncio.CancelledError):
    """The run, or this branch of it, was cancelled.

    Raised once, where the code waits. ``finally`` blocks may then use the context as always.

    Attributes:
        reason: Who or what cancelled it, in words.
        of_run: The whole run was cancelled, not only this branch of it.
        group: The path of the branches of which another has ended first, if that is why.
        timed_out: It was not cancelled by anybody; the workflow's ``timeout`` is over.
    """

    def __init__(self, reason: str = "", *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.timed_out, self.of_run, self.group = reason, timed_out, False, ""

    def is_beyond(self, group: str) -> bool:
        """Return True if more is cancelled than branches of a group: it is not over when they have ended."""
        return self.of_run or (bool(self.group) and group.startswith(f"{self.group}."))


# --- how a cancellation is recorded where it was raised, so that it is raised there again --------------------------


class Cancelled:
    """The result of a wait that was cancelled."""


CANCELLED: Final = Cancelled()


class _Data(Struct, frozen=True, omit_defaults=True):
    reason: str = ""
    timed_out: bool = False
    of_run: bool = False
    group: str = ""


_decoder: Final = msgspec.json.Decoder(_Data)


def data_of(cancel: RunCancelled) -> bytes:
    """Return a cancellation as JSON."""
    return msgspec.json.encode(_Data(cancel.reason, cancel.timed_out, cancel.of_run, cancel.group))


def cancel_of(event: HistoryEvent) -> RunCancelled:
    """Return the cancellation that an event tells of."""
    data = _decoder.decode(event.value or b"{}")
    cancel = RunCancelled(data.reason, timed_out=data.timed_out)
    cancel.of_run, cancel.group = data.of_run, data.group
    return cancel


def is_of_run(event: HistoryEvent) -> bool:
    """Return True if the whole run was cancelled, not only a branch of it."""
    return _decoder.decode(event.value or b"{}").of_run


# --- what is raised where the result of a run is asked for that has none -------------------------------------------


def raise_ending(
    run_id: str,
    status: str,
    failure: Failure | None,
    known: KnownErrors,
    reason: str | None = None,
    timeout: float | None = None,
) -> NoReturn:
    """Raise what stands for a run that failed, was cancelled, or timed out."""
    if (stopped := stop_of(run_id, status, reason, timeout)) is not None:
        raise stopped
    if failure is None:
        raise RunFailedError(run_id, "no reason was recorded")
    failed = RunFailedError(run_id, f"{failure.type}: {failure.message}")
    add_trace(failed, failure.trace)
    raise failed from restore(failure, known)


def stop_of(
    run_id: str, status: str, reason: str | None, timeout: float | None
) -> RunCancelledError | RunTimedOutError | None:
    """Return what stands for a run that was stopped; None: it was not."""
    if status == "cancelled":
        return RunCancelledError(run_id, reason or "no reason was given")
    return RunTimedOutError(run_id, timeout or 0.0) if status == "timed_out" else None
