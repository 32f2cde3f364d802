"""Webhooks: who signed a delivery, and which action it goes to."""

from __future__ import annotations

from standfast.transports.webhooks.declaring import Delivery, Webhook
from standfast.transports.webhooks.presets import Slack, StandardWebhooks, Stripe
from standfast.transports.webhooks.signing import Refused, Verdict, Verified, Verifier
from standfast.transports.webhooks.untimed import BodySignature, GitHub, Unsigned

__all__ = [
    "BodySignature",
    "Delivery",
    "GitHub",
    "Refused",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Unsigned",
    "Verdict",
    "Verified",
    "Verifier",
    "Webhook",
]
