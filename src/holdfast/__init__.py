"""Durable concurrency for Python: who may run, on which key, in which order, until when.

Names are loaded when they are first used, so ``import holdfast`` costs next to nothing and loads no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import blocking
    from holdfast.errors import HoldfastError
    from holdfast.keys import Key, KeyFamily
    from holdfast.local import Exclusion, attempt_under
    from holdfast.logs import LogHook
    from holdfast.space import Space, open
    from holdfast.stores.credentials import Credentials
    from holdfast.stores.sealing.keyring import Keyring
    from holdfast.workflows.context.context import Context
    from holdfast.workflows.context.performing import DID_NOT_HAPPEN, Happened, current_step
    from holdfast.workflows.declaring.definition import Retry, Step, Workflow, step, workflow
    from holdfast.workflows.declaring.limits import Limit
    from holdfast.workflows.engine import Engine
    from holdfast.workflows.handle import Run
    from holdfast.workflows.running.control import RunCancelled
    from holdfast.workflows.schedules.specification import Schedule
    from holdfast.workflows.starting.patterns import Batch, Debounce

__all__ = [
    "DID_NOT_HAPPEN",
    "Batch",
    "Context",
    "Credentials",
    "Debounce",
    "Engine",
    "Exclusion",
    "Happened",
    "HoldfastError",
    "Key",
    "KeyFamily",
    "Keyring",
    "Limit",
    "LogHook",
    "Retry",
    "Run",
    "RunCancelled",
    "Schedule",
    "Space",
    "Step",
    "Workflow",
    "attempt_under",
    "blocking",
    "current_step",
    "open",
    "step",
    "workflow",
]

# A fixed table, never data: which module each public name comes from.
_HOMES = {
    "DID_NOT_HAPPEN": "holdfast.workflows.context.performing",
    "Batch": "holdfast.workflows.starting.patterns",
    "Context": "holdfast.workflows.context.context",
    "Credentials": "holdfast.stores.credentials",
    "Debounce": "holdfast.workflows.starting.patterns",
    "Engine": "holdfast.workflows.engine",
    "Happened": "holdfast.workflows.context.performing",
    "Keyring": "holdfast.stores.sealing.keyring",
    "Limit": "holdfast.workflows.declaring.limits",
    "Retry": "holdfast.workflows.declaring.definition",
    "Run": "holdfast.workflows.handle",
    "RunCancelled": "holdfast.workflows.running.control",
    "Schedule": "holdfast.workflows.schedules.specification",
    "Step": "holdfast.workflows.declaring.definition",
    "Workflow": "holdfast.workflows.declaring.definition",
    "current_step": "holdfast.workflows.context.performing",
    "step": "holdfast.workflows.declaring.definition",
    "workflow": "holdfast.workflows.declaring.definition",
    "Exclusion": "holdfast.local",
    "HoldfastError": "holdfast.errors",
    "Key": "holdfast.keys",
    "KeyFamily": "holdfast.keys",
    "LogHook": "holdfast.logs",
    "Space": "holdfast.space",
    "attempt_under": "holdfast.local",
    "blocking": "holdfast.blocking",
    "open": "holdfast.space",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    module = import_module(home)  # rule: the module comes from the fixed table above
    found = module if home == f"holdfast.{name}" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
