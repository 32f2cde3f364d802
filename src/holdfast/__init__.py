"""Durable concurrency for Python: who may run, on which key, in which order, until when.

Names are loaded when they are first used, so ``import holdfast`` costs next to nothing and loads no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import blocking
    from holdfast.errors import HoldfastError
    from holdfast.flows.arrival import Arrival, Principal
    from holdfast.flows.dispatch import Dispatcher
    from holdfast.flows.flow import Flow
    from holdfast.flows.limits import ActionLimit, Rate
    from holdfast.flows.policies import Allow, Batch, Debounce, Join, Latest, Queue, Reject, Restart
    from holdfast.flows.request import Request
    from holdfast.flows.tenants import TenantLimits
    from holdfast.keys import Key, KeyFamily
    from holdfast.local import Exclusion, attempt_under
    from holdfast.logs import LogHook
    from holdfast.space import Space, open
    from holdfast.stores.credentials import Credentials
    from holdfast.stores.sealing.keyring import Keyring
    from holdfast.transports import webhooks
    from holdfast.transports.app import App, lifespan
    from holdfast.transports.authentication import BearerTokens, new_token, token_digest
    from holdfast.transports.chains import chain_headers
    from holdfast.transports.chat.declaring import Chat, ChatLimits
    from holdfast.transports.limits import AppLimits
    from holdfast.transports.oauth.tokens import OAuthTokens
    from holdfast.transports.webhooks import Webhook
    from holdfast.workflows.context.context import Context
    from holdfast.workflows.context.performing import DID_NOT_HAPPEN, Happened, current_step
    from holdfast.workflows.declaring.definition import Retry, Step, Workflow, step, workflow
    from holdfast.workflows.declaring.limits import Limit
    from holdfast.workflows.engine import Engine
    from holdfast.workflows.handle import Run
    from holdfast.workflows.running.control import RunCancelled
    from holdfast.workflows.schedules.specification import Schedule
    from holdfast.workflows.starting.patterns import Batched, Debounced

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
    "HoldfastError",
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
    "Step",
    "TenantLimits",
    "Webhook",
    "Workflow",
    "attempt_under",
    "blocking",
    "chain_headers",
    "current_step",
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
    "App": "holdfast.transports.app",
    "lifespan": "holdfast.transports.app",
    "AppLimits": "holdfast.transports.limits",
    "BearerTokens": "holdfast.transports.authentication",
    "new_token": "holdfast.transports.authentication",
    "token_digest": "holdfast.transports.authentication",
    "Webhook": "holdfast.transports.webhooks",
    "webhooks": "holdfast.transports.webhooks",
    "chain_headers": "holdfast.transports.chains",
    "DID_NOT_HAPPEN": "holdfast.workflows.context.performing",
    "ActionLimit": "holdfast.flows.limits",
    "Allow": "holdfast.flows.policies",
    "Arrival": "holdfast.flows.arrival",
    "Batch": "holdfast.flows.policies",
    "Batched": "holdfast.workflows.starting.patterns",
    "Chat": "holdfast.transports.chat.declaring",
    "ChatLimits": "holdfast.transports.chat.declaring",
    "Context": "holdfast.workflows.context.context",
    "Credentials": "holdfast.stores.credentials",
    "Debounce": "holdfast.flows.policies",
    "Debounced": "holdfast.workflows.starting.patterns",
    "Dispatcher": "holdfast.flows.dispatch",
    "Engine": "holdfast.workflows.engine",
    "Exclusion": "holdfast.local",
    "Flow": "holdfast.flows.flow",
    "Happened": "holdfast.workflows.context.performing",
    "HoldfastError": "holdfast.errors",
    "Join": "holdfast.flows.policies",
    "Key": "holdfast.keys",
    "KeyFamily": "holdfast.keys",
    "Keyring": "holdfast.stores.sealing.keyring",
    "Latest": "holdfast.flows.policies",
    "Limit": "holdfast.workflows.declaring.limits",
    "LogHook": "holdfast.logs",
    "OAuthTokens": "holdfast.transports.oauth.tokens",
    "Principal": "holdfast.flows.arrival",
    "Queue": "holdfast.flows.policies",
    "Rate": "holdfast.flows.limits",
    "Reject": "holdfast.flows.policies",
    "Request": "holdfast.flows.request",
    "Restart": "holdfast.flows.policies",
    "Retry": "holdfast.workflows.declaring.definition",
    "Run": "holdfast.workflows.handle",
    "RunCancelled": "holdfast.workflows.running.control",
    "Schedule": "holdfast.workflows.schedules.specification",
    "Space": "holdfast.space",
    "Step": "holdfast.workflows.declaring.definition",
    "TenantLimits": "holdfast.flows.tenants",
    "Workflow": "holdfast.workflows.declaring.definition",
    "attempt_under": "holdfast.local",
    "blocking": "holdfast.blocking",
    "current_step": "holdfast.workflows.context.performing",
    "open": "holdfast.space",
    "step": "holdfast.workflows.declaring.definition",
    "workflow": "holdfast.workflows.declaring.definition",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    module = import_module(home)  # rule: the module comes from the fixed table above
    found = module if home.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
