"""How a cancellation is recorded where it was raised, so that it is raised there again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from standfast.workflows.running.control import RunCancelled

if TYPE_CHECKING:
    from standfast.workflows.running.branches import Branch
    from standfast.workflows.storing.records import Mark


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


def cancel_of(mark: Mark) -> RunCancelled:
    """Return the cancellation that a mark tells of."""
    data = _decoder.decode(mark.value or b"{}")
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


def is_of_run(mark: Mark) -> bool:
    """Tell whether the whole run was cancelled, not only a branch of it."""
    return _decoder.decode(mark.value or b"{}").of_run
