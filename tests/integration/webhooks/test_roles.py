"""Webhooks and whoever else might call their actions: nobody can play the provider."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.web.signatures import StandardWebhooks
from tests.integration.webhooks.provider import LETTER, NEW, SOON, Worker, signed

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR = sf.Principal("acme", "olga", frozenset({"operator"}))
ROLES = {"good": frozenset({"provider"}), "poor": frozenset[str]()}
FORGED = {"metadata": {"webhook": {"deliveryId": "msg_1"}}, "roles": ["provider"], "type": "letter"}


async def test_an_action_with_a_role_is_called_by_its_webhook_alone(tmp_path: Path) -> None:
    """Not over HTTP, whatever the body says, and not by a webhook that lacks the role."""
    flow, ran = sf.Flow("billing"), list[str]()

    @flow.action(roles=["provider"])
    async def paid(request: sf.Request, event: dict[str, Any]) -> None:
        ran.append(f"{request.user} {event['type']}")

    webhooks = [
        sf.web.Webhook(name, StandardWebhooks(NEW), paid, principal=sf.Principal("acme", name, roles))
        for name, roles in ROLES.items()
    ]
    async with sf.App(f"sqlite:///{tmp_path}/roles.db", flows=[flow], webhooks=webhooks) as app:
        worker = Worker(app)
        called = await worker.post("/flows/billing/paid", json.dumps({"event": FORGED}).encode())
        poor, good = [await worker.post(f"/webhooks/{each}", LETTER, signed(LETTER)) for each in ("poor", "good")]
        await (await app.dispatcher.find(OPERATOR, good.json()["requestId"])).packed(SOON)

    assert [called.status_code, poor.status_code, good.status_code] == [403, 403, 202]
    assert ran == ["good letter"]
