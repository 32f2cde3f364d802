"""What is served to adversaries: everything that has an address, and actions that tell what got through."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import standfast as sf

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

STORE = os.environ["STANDFAST_STORE"]

desk = sf.Flow("desk")
ran: list[str] = []
held: list[int] = []


@desk.action
async def note(request: sf.Request, text: str) -> str:
    """Write down that it ran, and return who has asked."""
    ran.append(text[:20])
    return request.user


@desk.action
async def noted(request: sf.Request) -> list[str]:
    """Return what was written down."""
    del request
    return ran


@desk.action
async def hoard(request: sf.Request) -> int:
    """Open files until there are no descriptors left."""
    del request
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return len(held)


@desk.action
async def let_go(request: sf.Request) -> None:
    """Close them."""
    del request
    while held:
        os.close(held.pop())


@desk.action
async def respond(request: sf.Request, text: str) -> str:
    """Answer a message."""
    del request
    return text


@desk.action
async def take(request: sf.Request, letter: dict[str, Any]) -> None:
    """Take a letter."""
    del request
    ran.append(f"letter {letter}")


def named_by_proxy(connection: HTTPConnection) -> sf.Principal | None:
    """Believe a header that the proxy in front deletes if a client has sent it: what people write."""
    user = connection.headers.get("x-auth-user")
    return sf.Principal("acme", user) if user else None


def whereabouts(connection: HTTPConnection) -> sf.Principal:
    """Call everybody by where they come from."""
    address = connection.client.host if connection.client else "nowhere"
    said = connection.headers.get("x-forwarded-for", "nothing")
    return sf.Principal("acme", f"{address} {connection.url.scheme} {connection.headers['host']} {said}")


def made(*, has_tools: bool = True, **options: Any) -> sf.App:
    """Return an application with everything in it that has an address."""
    signed = sf.web.Webhook("letters", sf.web.webhooks.GitHub("a secret of the tests, long"), take)
    unsigned = sf.web.Webhook("unsigned", sf.web.webhooks.Unsigned(), take)
    return sf.App(
        STORE,
        flows=[desk],
        chats=[sf.web.Chat(desk, append=None)],
        tools=[desk] if has_tools else [],
        webhooks=[signed, unsigned],
        limits=sf.web.AppLimits(body_time="60s"),  # so that it is the edge that is looked at
        **options,
    )


# The library that serves tools takes longer to import than all the rest: only what is asked for is made.
MADE: dict[str, dict[str, Any]] = {
    "open_app": {},
    "proxied": {"authenticate": named_by_proxy},
    "open_without_tools": {"has_tools": False},
    "proxied_without_tools": {"authenticate": named_by_proxy, "has_tools": False},
    "located_without_tools": {"authenticate": whereabouts, "has_tools": False},
}


def __getattr__(name: str) -> sf.App:
    """Return an application by its name."""
    if name not in MADE:
        raise AttributeError(name)
    return made(**MADE[name])
