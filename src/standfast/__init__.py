"""Durable concurrency for Python: who may run, on which key, in which order, until when.

Names are loaded when they are first used, so ``import standfast`` costs next to nothing and loads no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standfast import blocking, errors
    from standfast.errors import StandfastError, StoreError
    from standfast.exclusion import Exclusion
    from standfast.exclusion.retry import attempt_under
    from standfast.flows.dispatcher import Dispatcher
    from standfast.flows.flow import Flow
    from standfast.flows.policies import ActionLimit, Allow, Batch, Debounce, Join, Latest, Queue, Rate, Reject, Restart
    from standfast.flows.request import Arrival, Principal, Request
    from standfast.flows.tenants import TenantLimits
    from standfast.keys import Key, KeyFamily
    from standfast.log_hook import LogHook
    from standfast.space import Space, open
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.web import webhooks
    from standfast.web.app import App, lifespan
    from standfast.web.auth import BearerTokens, new_token, token_digest
    from standfast.web.call import chain_headers
    from standfast.web.chat import Chat, ChatLimits
    from standfast.web.limits import AppLimits
    from standfast.web.oauth import OAuthTokens
    from standfast.web.webhooks import Webhook
    from standfast.workflows.client import Run
    from standfast.workflows.context import Context
    from standfast.workflows.control import RunCancelled
    from standfast.workflows.debounce import Batched, Debounced
    from standfast.workflows.definition import Bound, Limit, Retry, Step, Workflow, step, workflow
    from standfast.workflows.engine import Engine
    from standfast.workflows.schedules.spec import Schedule
    from standfast.workflows.steps import DID_NOT_HAPPEN, Happened, current_step

__all__ = [
    "DID_NOT_HAPPEN",
    "ActionLimit",
    "Allow",
    "App",
    "AppLimits",
    "Arrival",
    "Batch",
    "Batched",
    "BearerTokens",
    "Bound",
    "Chat",
    "ChatLimits",
    "Context",
    "Credentials",
    "Debounce",
    "Debounced",
    "Dispatcher",
    "Engine",
    "Exclusion",
    "Flow",
    "Happened",
    "Join",
    "Key",
    "KeyFamily",
    "Keyring",
    "Latest",
    "Limit",
    "LogHook",
    "OAuthTokens",
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
    "Step",
    "StoreError",
    "TenantLimits",
    "Webhook",
    "Workflow",
    "attempt_under",
    "blocking",
    "chain_headers",
    "current_step",
    "errors",
    "lifespan",
    "new_token",
    "open",
    "step",
    "token_digest",
    "webhooks",
    "workflow",
]

# A fixed table, never data: which module each public name comes from.
_HOMES = {
    "App": "standfast.web.app",
    "lifespan": "standfast.web.app",
    "AppLimits": "standfast.web.limits",
    "BearerTokens": "standfast.web.auth",
    "new_token": "standfast.web.auth",
    "token_digest": "standfast.web.auth",
    "Webhook": "standfast.web.webhooks",
    "webhooks": "standfast.web.webhooks",
    "chain_headers": "standfast.web.call",
    "DID_NOT_HAPPEN": "standfast.workflows.steps",
    "ActionLimit": "standfast.flows.policies",
    "Allow": "standfast.flows.policies",
    "Arrival": "standfast.flows.request",
    "Batch": "standfast.flows.policies",
    "Batched": "standfast.workflows.debounce",
    "Bound": "standfast.workflows.definition",
    "Chat": "standfast.web.chat",
    "ChatLimits": "standfast.web.chat",
    "Context": "standfast.workflows.context",
    "Credentials": "standfast.stores.url",
    "Debounce": "standfast.flows.policies",
    "Debounced": "standfast.workflows.debounce",
    "Dispatcher": "standfast.flows.dispatcher",
    "Engine": "standfast.workflows.engine",
    "Exclusion": "standfast.exclusion",
    "Flow": "standfast.flows.flow",
    "Happened": "standfast.workflows.steps",
    "StandfastError": "standfast.errors",
    "StoreError": "standfast.errors",
    "errors": "standfast.errors",
    "Join": "standfast.flows.policies",
    "Key": "standfast.keys",
    "KeyFamily": "standfast.keys",
    "Keyring": "standfast.stores.encryption",
    "Latest": "standfast.flows.policies",
    "Limit": "standfast.workflows.definition",
    "LogHook": "standfast.log_hook",
    "OAuthTokens": "standfast.web.oauth",
    "Principal": "standfast.flows.request",
    "Queue": "standfast.flows.policies",
    "Rate": "standfast.flows.policies",
    "Reject": "standfast.flows.policies",
    "Request": "standfast.flows.request",
    "Restart": "standfast.flows.policies",
    "Retry": "standfast.workflows.definition",
    "Run": "standfast.workflows.client",
    "RunCancelled": "standfast.workflows.control",
    "Schedule": "standfast.workflows.schedules.spec",
    "Space": "standfast.space",
    "Step": "standfast.workflows.definition",
    "TenantLimits": "standfast.flows.tenants",
    "Workflow": "standfast.workflows.definition",
    "attempt_under": "standfast.exclusion",
    "blocking": "standfast.blocking",
    "current_step": "standfast.workflows.steps",
    "open": "standfast.space",
    "step": "standfast.workflows.definition",
    "workflow": "standfast.workflows.definition",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'standfast' has no attribute {name!r}")
    module = import_module(home)  # rule: the module comes from the fixed table above
    found = module if home.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
