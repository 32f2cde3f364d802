"""The support chat as it is served in the last scene: customers write, and a carrier tells what becomes of parcels."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from support_chat import support

import holdfast as hf
from demonstration.serving import LEDGER, SECRET, STORE

LOOKS_UP: Final = 0.8
"""Seconds that asking the carrier takes."""

parcels = hf.Flow("parcels", description="A carrier tells that something has happened to a parcel.")


def parcel_of(arrival: hf.Arrival) -> str:
    """Return which parcel an event is about."""
    assert not isinstance(arrival.inputs, bytes)
    return str(arrival.inputs["event"]["parcel"])


@parcels.action(concurrency=hf.Reject(key=parcel_of))
async def look_up(request: hf.Request, event: dict[str, Any]) -> str:
    """Ask the carrier where a parcel is. While that goes on, another event about it needs no second look."""
    _write(f"{event['parcel']} {request.id}\n")
    await asyncio.sleep(LOOKS_UP)
    return f"{event['parcel']} is on its way"


def _write(line: str) -> None:
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as ledger:
        ledger.write(line)


def app() -> hf.App:
    """Return the application, on the store that the demonstration names."""
    carrier = hf.Webhook("carrier", hf.webhooks.StandardWebhooks(SECRET), to=look_up)
    return hf.App(
        os.environ[STORE], flows=[support, parcels], chats=[hf.Chat(support)], webhooks=[carrier], name="support"
    )
