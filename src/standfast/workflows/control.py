"""What is raised in a workflow's code to make it stop, by design out of reach of ``except Exception``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn, final

import msgspec
from msgspec import Struct, structs

from standfast.clock import later
from standfast.errors import RunCancelledError, RunFailedError, RunTimedOutError
from standfast.stores.protocol import Put
from standfast.workflows.failures import add_trace, restore
from standfast.workflows.records import HEADERS, READY, RUN_STATES, RunKeys, RunState

if TYPE_CHECKING:
    from standfast.stores.protocol import Change
    from standfast.workflows.activation import Activation
    from standfast.workflows.failures import Failure, KnownErrors
    from standfast.workflows.records import HistoryEvent
    from standfast.workflows.replay import Branch


# --- going on as a new run, with a short history -------------------------------------------------------------------


class ContinueAsNew(BaseException):
    """Ends a run and starts the next one of its chain in the same commit. Let it pass."""

    def __init__(self, packed: bytes) -> None:
        super().__init__("the run goes on as a new one")
        self.packed = packed


def next_id(run_id: str) -> str:
    """Return the id of the run that comes after one: ``order-7``, then ``order-7~2``."""
    name, tilde, number = run_id.rpartition("~")
    return f"{name}~{int(number) + 1}" if tilde and number.isascii() and number.isdigit() else f"{run_id}~2"


def continued(activation: Activation, goes_on: ContinueAsNew, cancel: str | None) -> tuple[Change, ...]:
    """Return the changes that create the next run of the chain. A cancellation that came too late is for that run."""
    runtime, old = activation.runtime, activation.header
    now = runtime.now()
    keys = RunKeys(runtime.space, next_id(activation.keys.id))
    deadline = None
    if activation.workflow.timeout is not None:
        deadline = later(now, activation.workflow.timeout)
    header = structs.replace(
        old,
        input=msgspec.Raw(goes_on.packed),
        started_at=now,
        deadline=deadline,
        continued_from=activation.keys.id,
        mail_from=activation.inbox.left_in(),
        idempotency_key="",
        begins_at=None,
        lines=tuple([structs.replace(each, entry=each.entry or activation.keys.id) for each in old.lines]),
    )
    state = RunState(
        "pending",
        old.workflow,
        old.version,
        now,
        waits_for="a worker",
        admitted=len(old.lines),
        cancel=None if activation.cancel_is_raised else cancel,
    )
    return (
        Put(keys.header, HEADERS.encode(header)),
        Put(keys.state, RUN_STATES.encode(state)),
        Put(keys.ready, READY),
    )


# --- what is raised in a workflow's code to make it stop, by design out of reach of ``except Exception`` -----------


@final
class Unload(BaseException):
    """The run is taken out of memory. It goes on from its records when it is woken.

    Let it pass. Nothing that the context does after it is recorded, and nothing is released: whoever catches it only
    delays it, and that is reported.
    """


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
        """Tell whether more is cancelled than branches of a group: it is not over when they have ended."""
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


def told_again(branch: Branch, cancel: RunCancelled) -> RunCancelled:
    """Return a cancellation that was recorded; it is what the branch was about to be told again by the replay."""
    if branch.cancel is not None and (cancel.of_run or not branch.cancel.of_run):
        branch.cancel = None
    branch.is_told = branch.is_told or cancel.of_run
    branch.lost_in.add(cancel.group)
    return cancel


def is_of_run(event: HistoryEvent) -> bool:
    """Tell whether the whole run was cancelled, not only a branch of it."""
    return _decoder.decode(event.value or b"{}").of_run


# --- how a run that has no result tells so to whoever asks for it --------------------------------------------------


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
