"""What brings requests in over a network: :class:`~standfast.web.app.App` and its options.

Transports only translate; the dispatcher decides. Names are loaded when they are first used, so that nothing here needs
a library of the web before an app is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast._lazy import lazy_names

if TYPE_CHECKING:
    from standfast.flows.tenants import TenantLimits
    from standfast.web import webhooks
    from standfast.web.app import App, Site, lifespan
    from standfast.web.auth import BearerTokens, new_token, token_digest
    from standfast.web.call import chain_headers
    from standfast.web.chat import Chat, ChatLimits
    from standfast.web.dashboard import Dashboard
    from standfast.web.limits import AppLimits
    from standfast.web.oauth import OAuthTokens
    from standfast.web.webhooks import Webhook

__all__ = [
    "App",
    "AppLimits",
    "BearerTokens",
    "Chat",
    "ChatLimits",
    "Dashboard",
    "OAuthTokens",
    "Site",
    "TenantLimits",
    "Webhook",
    "chain_headers",
    "lifespan",
    "new_token",
    "token_digest",
    "webhooks",
]

# A fixed table, never data: which module each public name comes from.
_HOMES = {
    "App": "standfast.web.app",
    "AppLimits": "standfast.web.limits",
    "BearerTokens": "standfast.web.auth",
    "Chat": "standfast.web.chat",
    "ChatLimits": "standfast.web.chat",
    "Dashboard": "standfast.web.dashboard",
    "OAuthTokens": "standfast.web.oauth",
    "Site": "standfast.web.app",
    "TenantLimits": "standfast.flows.tenants",
    "Webhook": "standfast.web.webhooks",
    "chain_headers": "standfast.web.call",
    "lifespan": "standfast.web.app",
    "new_token": "standfast.web.auth",
    "token_digest": "standfast.web.auth",
    "webhooks": "standfast.web.webhooks",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, globals())
