"""The support chat as it is served in the last scene: customers write, and a carrier tells what becomes of parcels."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from support_chat import support

import standfast as sf
from demonstration.serving import LEDGER, SECRET, STORE

LOOKS_UP: Final = 0.8
"""Seconds that asking the carrier takes."""

parcels = sf.Flow("parcels", description="A carrier tells that something has happened to a parcel.")


def parcel_of(arrival: sf.Call) -> str:
    """Return which parcel an event is about."""
    assert not isinstance(arrival.inputs, bytes)
    return str(arrival.inputs["event"]["parcel"])


@parcels.action(concurrency=sf.Reject(key=parcel_of))
async def look_up(request: sf.Request, event: dict[str, Any]) -> str:
    """Ask the carrier where a parcel is. While that goes on, another event about it needs no second look."""
    _write(f"{event['parcel']} {request.id}\n")
    await asyncio.sleep(LOOKS_UP)
    return f"{event['parcel']} is on its way"


def _write(line: str) -> None:
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as ledger:
        ledger.write(line)


def app() -> sf.App:
    """Return the application, on the store that the demonstration names."""
    carrier = sf.web.Webhook("carrier", sf.web.webhooks.StandardWebhooks(SECRET), to=look_up)
    return sf.App(
        os.environ[STORE], flows=[support, parcels], chats=[sf.web.Chat(support)], webhooks=[carrier], name="support"
    )
