"""Durable concurrency for Python: who may run, on which key, in which order, until when.

Names are loaded when they are first used, so ``import standfast`` costs next to nothing and loads no driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast._lazy import lazy_names

if TYPE_CHECKING:
    from standfast import admin, blocking, errors, web
    from standfast.errors import StandfastError
    from standfast.exclusion import Exclusion
    from standfast.flows.dispatcher import Dispatcher
    from standfast.flows.flow import Flow
    from standfast.flows.request import Call, Principal, Request
    from standfast.keys import Key, KeyFamily
    from standfast.policies import Allow, Batch, Debounce, Join, Latest, Limit, Queue, Rate, Reject, Restart
    from standfast.space import Space, open
    from standfast.web.app import App
    from standfast.workflows.context import Context
    from standfast.workflows.control import RunCancelled
    from standfast.workflows.debounce import collect
    from standfast.workflows.decorators import step, workflow
    from standfast.workflows.definition import Retry, Workflow
    from standfast.workflows.engine import Engine
    from standfast.workflows.run import Run
    from standfast.workflows.schedules.spec import Schedule
    from standfast.workflows.steps import DID_NOT_HAPPEN, Happened, current_step

__all__ = [
    "DID_NOT_HAPPEN",
    "Allow",
    "App",
    "Batch",
    "Call",
    "Context",
    "Debounce",
    "Dispatcher",
    "Engine",
    "Exclusion",
    "Flow",
    "Happened",
    "Join",
    "Key",
    "KeyFamily",
    "Latest",
    "Limit",
    "Principal",
    "Queue",
    "Rate",
    "Reject",
    "Request",
    "Restart",
    "Retry",
    "Run",
    "RunCancelled",
    "Schedule",
    "Space",
    "StandfastError",
    "Workflow",
    "admin",
    "blocking",
    "collect",
    "current_step",
    "errors",
    "open",
    "step",
    "web",
    "workflow",
]

# A fixed table, never data: which module each public name comes from.
_HOMES = {
    "App": "standfast.web.app",
    "admin": "standfast.admin",
    "web": "standfast.web",
    "DID_NOT_HAPPEN": "standfast.workflows.steps",
    "Allow": "standfast.policies",
    "Call": "standfast.flows.request",
    "Batch": "standfast.policies",
    "Context": "standfast.workflows.context",
    "Debounce": "standfast.policies",
    "Dispatcher": "standfast.flows.dispatcher",
    "Engine": "standfast.workflows.engine",
    "Exclusion": "standfast.exclusion",
    "Flow": "standfast.flows.flow",
    "Happened": "standfast.workflows.steps",
    "StandfastError": "standfast.errors",
    "errors": "standfast.errors",
    "Join": "standfast.policies",
    "Key": "standfast.keys",
    "KeyFamily": "standfast.keys",
    "Latest": "standfast.policies",
    "Limit": "standfast.policies",
    "Principal": "standfast.flows.request",
    "Queue": "standfast.policies",
    "Rate": "standfast.policies",
    "Reject": "standfast.policies",
    "Request": "standfast.flows.request",
    "Restart": "standfast.policies",
    "Retry": "standfast.workflows.definition",
    "Run": "standfast.workflows.run",
    "RunCancelled": "standfast.workflows.control",
    "Schedule": "standfast.workflows.schedules.spec",
    "Space": "standfast.space",
    "Workflow": "standfast.workflows.definition",
    "blocking": "standfast.blocking",
    "collect": "standfast.workflows.debounce",
    "current_step": "standfast.workflows.steps",
    "open": "standfast.space",
    "step": "standfast.workflows.decorators",
    "workflow": "standfast.workflows.decorators",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, globals())
