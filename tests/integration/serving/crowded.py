"""What is served to a crowd in these tests: calls that stay, calls that are short, and deliveries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import standfast as sf
from tests.integration.webhooks.provider import NEW

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

square = sf.Flow("square", concurrency="allow")


@square.action
async def stay(request: sf.Request) -> None:
    """Stay until the caller hangs up."""
    del request
    await asyncio.Event().wait()


@square.action
async def short(request: sf.Request) -> str:
    """Be done at once."""
    return request.user


@square.action(durable=True)
async def later(request: sf.Request) -> None:
    """Be recorded, and stay."""
    del request
    await asyncio.Event().wait()


@square.action(durable=True)
async def keep(request: sf.Request, text: str) -> str:
    """Be recorded, and leave an answer."""
    del request
    return text


@square.action
async def letter(request: sf.Request, parcel: Any) -> None:
    """Take a delivery."""
    del request, parcel


def who(connection: HTTPConnection) -> sf.Principal | None:
    """Everybody says who they are: ``tenant/user``."""
    tenant, _, user = connection.headers.get("x-user", "").partition("/")
    return sf.Principal(tenant, user) if tenant else None


app = sf.App(
    "memory://",
    flows=[square],
    webhooks=[sf.web.Webhook("letters", sf.web.webhooks.StandardWebhooks(NEW), letter)],
    authenticate=who,
    limits=sf.web.AppLimits(
        requests=60,
        deliveries=60,
        body_time="60s",
        tenants=sf.web.TenantLimits(durable=20, bytes_kept=500_000),
        grace=0,
    ),
)
