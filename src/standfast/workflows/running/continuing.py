"""Going on as a new run, with a short history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from standfast.clock import later
from standfast.stores.protocol import Put
from standfast.workflows.storing.records import HEADERS, LIVES, READY, Life, RunKeys

if TYPE_CHECKING:
    from standfast.stores.protocol import Change
    from standfast.workflows.running.activation import Activation


class ContinueAsNew(BaseException):
    """Ends a run and starts the next one of its chain in the same commit. Let it pass."""

    def __init__(self, packed: bytes) -> None:
        super().__init__("the run goes on as a new one")
        self.packed = packed


def next_id(run_id: str) -> str:
    """Return the id of the run that comes after one: ``order-7``, then ``order-7~2``."""
    name, mark, number = run_id.rpartition("~")
    return f"{name}~{int(number) + 1}" if mark and number.isascii() and number.isdigit() else f"{run_id}~2"


def continued(activation: Activation, goes_on: ContinueAsNew, cancel: str | None) -> tuple[Change, ...]:
    """Return the changes that create the next run of the chain. A cancellation that came too late is for that run."""
    host, old = activation.host, activation.header
    now = host.now()
    keys = RunKeys(host.space, next_id(activation.keys.id))
    deadline = None
    if activation.workflow.timeout is not None:
        deadline = later(now, activation.workflow.timeout)
    header = structs.replace(
        old,
        input=msgspec.Raw(goes_on.packed),
        started_at=now,
        deadline=deadline,
        continued_from=activation.keys.id,
        mail_from=activation.mail.left_in(),
        idempotency_key="",
        begins_at=None,
        lines=tuple([structs.replace(each, entry=each.entry or activation.keys.id) for each in old.lines]),
    )
    life = Life(
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
        Put(keys.life, LIVES.encode(life)),
        Put(keys.ready, READY),
    )
