"""Durable concurrency for Python: who may run, on which key, in which order, until when.

Names are loaded when they are first used, so ``import standfast`` costs next to nothing and loads no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standfast import blocking, errors
    from standfast.errors import StandfastError, StoreError
    from standfast.flows.arrival import Arrival, Principal
    from standfast.flows.dispatch import Dispatcher
    from standfast.flows.flow import Flow
    from standfast.flows.limits import ActionLimit, Rate
    from standfast.flows.policies import Allow, Batch, Debounce, Join, Latest, Queue, Reject, Restart
    from standfast.flows.request import Request
    from standfast.flows.tenants import TenantLimits
    from standfast.keys import Key, KeyFamily
    from standfast.local import Exclusion, attempt_under
    from standfast.logs import LogHook
    from standfast.space import Space, open
    from standfast.stores.credentials import Credentials
    from standfast.stores.sealing.keyring import Keyring
    from standfast.transports import webhooks
    from standfast.transports.app import App, lifespan
    from standfast.transports.authentication import BearerTokens, new_token, token_digest
    from standfast.transports.chains import chain_headers
    from standfast.transports.chat.declaring import Chat, ChatLimits
    from standfast.transports.limits import AppLimits
    from standfast.transports.oauth.tokens import OAuthTokens
    from standfast.transports.webhooks import Webhook
    from standfast.workflows.context.context import Context
    from standfast.workflows.context.performing import DID_NOT_HAPPEN, Happened, current_step
    from standfast.workflows.declaring.definition import Bound, Retry, Step, Workflow, step, workflow
    from standfast.workflows.declaring.limits import Limit
    from standfast.workflows.engine import Engine
    from standfast.workflows.handle import Run
    from standfast.workflows.running.control import RunCancelled
    from standfast.workflows.schedules.specification import Schedule
    from standfast.workflows.starting.patterns import Batched, Debounced

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
    "App": "standfast.transports.app",
    "lifespan": "standfast.transports.app",
    "AppLimits": "standfast.transports.limits",
    "BearerTokens": "standfast.transports.authentication",
    "new_token": "standfast.transports.authentication",
    "token_digest": "standfast.transports.authentication",
    "Webhook": "standfast.transports.webhooks",
    "webhooks": "standfast.transports.webhooks",
    "chain_headers": "standfast.transports.chains",
    "DID_NOT_HAPPEN": "standfast.workflows.context.performing",
    "ActionLimit": "standfast.flows.limits",
    "Allow": "standfast.flows.policies",
    "Arrival": "standfast.flows.arrival",
    "Batch": "standfast.flows.policies",
    "Batched": "standfast.workflows.starting.patterns",
    "Bound": "standfast.workflows.declaring.definition",
    "Chat": "standfast.transports.chat.declaring",
    "ChatLimits": "standfast.transports.chat.declaring",
    "Context": "standfast.workflows.context.context",
    "Credentials": "standfast.stores.credentials",
    "Debounce": "standfast.flows.policies",
    "Debounced": "standfast.workflows.starting.patterns",
    "Dispatcher": "standfast.flows.dispatch",
    "Engine": "standfast.workflows.engine",
    "Exclusion": "standfast.local",
    "Flow": "standfast.flows.flow",
    "Happened": "standfast.workflows.context.performing",
    "StandfastError": "standfast.errors",
    "StoreError": "standfast.errors",
    "errors": "standfast.errors",
    "Join": "standfast.flows.policies",
    "Key": "standfast.keys",
    "KeyFamily": "standfast.keys",
    "Keyring": "standfast.stores.sealing.keyring",
    "Latest": "standfast.flows.policies",
    "Limit": "standfast.workflows.declaring.limits",
    "LogHook": "standfast.logs",
    "OAuthTokens": "standfast.transports.oauth.tokens",
    "Principal": "standfast.flows.arrival",
    "Queue": "standfast.flows.policies",
    "Rate": "standfast.flows.limits",
    "Reject": "standfast.flows.policies",
    "Request": "standfast.flows.request",
    "Restart": "standfast.flows.policies",
    "Retry": "standfast.workflows.declaring.definition",
    "Run": "standfast.workflows.handle",
    "RunCancelled": "standfast.workflows.running.control",
    "Schedule": "standfast.workflows.schedules.specification",
    "Space": "standfast.space",
    "Step": "standfast.workflows.declaring.definition",
    "TenantLimits": "standfast.flows.tenants",
    "Workflow": "standfast.workflows.declaring.definition",
    "attempt_under": "standfast.local",
    "blocking": "standfast.blocking",
    "current_step": "standfast.workflows.context.performing",
    "open": "standfast.space",
    "step": "standfast.workflows.declaring.definition",
    "workflow": "standfast.workflows.declaring.definition",
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
