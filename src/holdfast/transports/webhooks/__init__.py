"""Webhooks: who signed a delivery, and which action it goes to."""

from __future__ import annotations

from holdfast.transports.webhooks.declaring import Delivery, Webhook
from holdfast.transports.webhooks.presets import Slack, StandardWebhooks, Stripe
from holdfast.transports.webhooks.signing import Refused, Verdict, Verified, Verifier
from holdfast.transports.webhooks.untimed import BodySignature, GitHub, Unsigned

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
