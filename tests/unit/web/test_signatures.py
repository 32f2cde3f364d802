"""Signatures of webhooks, against the examples that providers publish."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import DeclarationError
from standfast.flows.records import KEPT
from standfast.web.signatures import (
    LONGEST_TOLERANCE,
    BodySignature,
    GitHub,
    Refused,
    Slack,
    StandardWebhooks,
    Stripe,
    Verified,
)

if TYPE_CHECKING:
    from standfast.web.signatures import Verifier

# From the specification of Standard Webhooks.
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 -- published
STANDARD_BODY = b'{"test": 2432232314}'
STANDARD = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
# From GitHub's page on validating deliveries.
GITHUB_SECRET, GITHUB_BODY = "It's a Secret to Everybody", b"Hello, World!"
GITHUB = {
    "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    "x-github-event": "push",
}
# From Slack's page on verifying requests.
SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"  # noqa: S105 -- published
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
SLACK = {
    "x-slack-request-timestamp": "1531420618",
    "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
}
# From the tests of a client library of Stripe's interface; Stripe's own page has a header, but no secret to it.
STRIPE_SECRET = "webhook_secret"  # noqa: S105 -- published
STRIPE_BODY = b"""{
  "id": "evt_123",
  "object": "event",
  "account": "acct_123",
  "api_version": "2017-05-25",
  "created": 1533204620,
  "data": {
    "object": {
      "id": "ii_123",
      "object": "invoiceitem",
      "amount": 1000,
      "currency": "usd",
      "customer": "cus_123",
      "date": 1533204620,
      "description": "Test Invoice Item",
      "discountable": false,
      "invoice": "in_123",
      "livemode": false,
      "metadata": {},
      "period": {
        "start": 1533204620,
        "end": 1533204620
      },
      "proration": false,
      "quantity": 3
    }
  },
  "livemode": false,
  "pending_webhooks": 1,
  "request": {
    "id": "req_123",
    "idempotency_key": "idempotency-key-123"
  },
  "type": "invoiceitem.created"
}
"""
STRIPE = {
    "stripe-signature": "t=1533204620,v1=82216eca827bcb7b34b8055eb2d2d9e6bc13b9ac39ded14a61e69f70c565f53a,"
    "v0=63f3a72374a733066c4be69ed7f8e5ac85c22c9f0a6a612ab9a025a9e4ee7eef"
}

PUBLISHED = [
    pytest.param(StandardWebhooks(STANDARD_SECRET), STANDARD, STANDARD_BODY, 1614265330, id="standard"),
    pytest.param(GitHub(GITHUB_SECRET), GITHUB, GITHUB_BODY, 0, id="github"),
    pytest.param(Slack(SLACK_SECRET), SLACK, SLACK_BODY, 1531420618, id="slack"),
    pytest.param(Stripe(STRIPE_SECRET), STRIPE, STRIPE_BODY, 1533204620, id="stripe"),
]
OTHER = "another secret that is long enough"


def at(seconds: float) -> Instant:
    """Return an instant by its seconds."""
    return Instant(round(seconds * MICROSECONDS))


@pytest.mark.parametrize(("verifier", "headers", "body", "time"), PUBLISHED)
def test_a_published_example_is_verified(verifier: Verifier, headers: dict[str, str], body: bytes, time: int) -> None:
    """What the provider says is signed, is; and when."""
    verdict = verifier.verify(headers, body, at(time))
    assert isinstance(verdict, Verified)
    assert (verdict.secret_id, verdict.sent_at) == ("default", time or None)


@pytest.mark.parametrize(("verifier", "headers", "body", "time"), PUBLISHED)
def test_one_changed_byte_is_refused(verifier: Verifier, headers: dict[str, str], body: bytes, time: int) -> None:
    """A body that was tampered with has no signature."""
    for n in (0, len(body) // 2, len(body) - 1):
        tampered = body[:n] + bytes([body[n] ^ 1]) + body[n + 1 :]
        assert verifier.verify(headers, tampered, at(time)) == Refused("mismatch")


@pytest.mark.parametrize(("verifier", "headers", "body", "time"), PUBLISHED)
def test_a_signature_has_to_fit_to_its_end(verifier: Verifier, headers: dict[str, str], body: bytes, time: int) -> None:
    """One that only begins well, or goes on too long, is none."""
    [name] = [name for name in headers if "signature" in name]
    whole = headers[name].partition(",v0=")[0]
    for other in (whole[:-4], f"{whole[:-4]}0000", f"{whole}0"):
        assert verifier.verify(headers | {name: other}, body, at(time)) == Refused("mismatch")


@pytest.mark.parametrize(("verifier", "headers", "body", "time"), PUBLISHED)
def test_no_header_may_be_missing_or_odd(verifier: Verifier, headers: dict[str, str], body: bytes, time: int) -> None:
    """Without its headers, or with nonsense in them, a delivery is refused, and nothing is raised."""
    signed = [name for name in headers if name not in {"x-github-delivery", "x-github-event"}]
    for name in signed:
        for odd in (None, "", "\xff", "v1,", "t=,v1=", "sha256=", "v0=", "t=1,t=1,v1=0", "-1", "9" * 40):
            changed = {key: value for key, value in headers.items() if key != name} | ({name: odd} if odd else {})
            assert isinstance(verifier.verify(changed, body, at(time)), Refused)


@pytest.mark.parametrize(("verifier", "headers", "body", "time"), [each for each in PUBLISHED if each.id != "github"])
@pytest.mark.parametrize("off", [-300.001, 300.001, -86_400, 86_400])
def test_a_signature_outside_the_window_is_stale(
    verifier: Verifier, headers: dict[str, str], body: bytes, time: int, off: float
) -> None:
    """Five minutes are allowed in both directions, and not more."""
    assert verifier.verify(headers, body, at(time + off)) == Refused("stale")
    assert isinstance(verifier.verify(headers, body, at(time + (300 if off > 0 else -300))), Verified)


@pytest.mark.parametrize(
    ("make", "headers", "body", "time", "secret"),
    [
        pytest.param(StandardWebhooks, STANDARD, STANDARD_BODY, 1614265330, STANDARD_SECRET, id="standard"),
        pytest.param(GitHub, GITHUB, GITHUB_BODY, 0, GITHUB_SECRET, id="github"),
        pytest.param(Slack, SLACK, SLACK_BODY, 1531420618, SLACK_SECRET, id="slack"),
        pytest.param(Stripe, STRIPE, STRIPE_BODY, 1533204620, STRIPE_SECRET, id="stripe"),
    ],
)
def test_each_active_secret_is_tried_and_named_by_its_id(
    make: type[Stripe], headers: dict[str, str], body: bytes, time: int, secret: str
) -> None:
    """While secrets change over both are good, wherever they stand; one that was taken away is not."""
    other = base64.b64encode(OTHER.encode()).decode()
    for secrets in ({"old": secret, "new": other}, {"new": other, "old": secret}):
        verdict = make(secrets).verify(headers, body, at(time))
        assert isinstance(verdict, Verified)
        assert {verdict.secret_id} == {"old"}
    assert make({"new": other}).verify(headers, body, at(time)) == Refused("mismatch")


def test_any_of_several_signatures_will_do() -> None:
    """A sender that changes its secret signs with both; what is of another version is passed over."""
    good = STANDARD["webhook-signature"]
    for signatures in (f"v1,AAAA {good}", f"{good} v1,AAAA", f"v1a,{good[3:]} {good}"):
        headers = STANDARD | {"webhook-signature": signatures}
        assert isinstance(StandardWebhooks(STANDARD_SECRET).verify(headers, STANDARD_BODY, at(1614265330)), Verified)
    headers = STANDARD | {"webhook-signature": f"v1a,{good[3:]} v2,{good[3:]}"}
    verdict = StandardWebhooks(STANDARD_SECRET).verify(headers, STANDARD_BODY, at(1614265330))
    assert verdict == Refused("mismatch")


def test_the_headers_of_svix_are_taken_too_but_never_mixed() -> None:
    """The older names mean the same; an id of one kind is not signed by a signature of the other."""
    svix = {name.replace("webhook", "svix"): value for name, value in STANDARD.items()}
    verifier = StandardWebhooks(STANDARD_SECRET)
    assert isinstance(verifier.verify(svix, STANDARD_BODY, at(1614265330)), Verified)
    assert verifier.delivery_id(svix, {}) == STANDARD["webhook-id"]
    assert verifier.verify(svix | {"webhook-id": "msg_other"}, STANDARD_BODY, at(1614265330)) == Refused("unsigned")


def test_a_signed_id_cannot_be_changed() -> None:
    """In Standard Webhooks a delivery under another id has no signature, so it cannot be replayed as a new one."""
    headers = STANDARD | {"webhook-id": "msg_other"}
    verdict = StandardWebhooks(STANDARD_SECRET).verify(headers, STANDARD_BODY, at(1614265330))
    assert verdict == Refused("mismatch")


def test_providers_say_whether_they_sign_the_time() -> None:
    """GitHub signs the body alone, and whoever asks is told."""
    assert not GitHub(GITHUB_SECRET).signs_time
    assert StandardWebhooks(STANDARD_SECRET).signs_time
    assert Stripe(STRIPE_SECRET).signs_time
    assert Slack(SLACK_SECRET).signs_time


@pytest.mark.parametrize(
    ("verifier", "headers", "payload", "expected"),
    [
        (GitHub(GITHUB_SECRET), GITHUB, {}, ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "push")),
        (Stripe(STRIPE_SECRET), STRIPE, {"id": "evt_123", "type": "invoice.paid"}, ("evt_123", "invoice.paid")),
        (Slack(SLACK_SECRET), SLACK, {"event_id": "Ev1", "event": {"type": "message"}}, ("Ev1", "message")),
        (Slack(SLACK_SECRET), SLACK, {"trigger_id": "13.37", "command": "/deploy"}, ("13.37", "/deploy")),
        (StandardWebhooks(STANDARD_SECRET), STANDARD, {"type": "user.made"}, (STANDARD["webhook-id"], "user.made")),
        (Stripe(STRIPE_SECRET), STRIPE, ["no", "object"], ("", "")),
        (Slack(SLACK_SECRET), SLACK, {"event_id": 7, "event": "odd"}, ("", "")),
    ],
)
def test_a_delivery_has_the_id_and_the_event_that_its_provider_gave_it(
    verifier: Verifier, headers: dict[str, str], payload: object, expected: tuple[str, str]
) -> None:
    """They are found where the provider puts them; what is not text is none."""
    assert (verifier.delivery_id(headers, payload), verifier.event(headers, payload)) == expected


def test_slack_is_answered_when_it_asks_whether_somebody_is_there() -> None:
    """The challenge comes back; an event has none."""
    slack = Slack(SLACK_SECRET)
    assert slack.greeting({"type": "url_verification", "challenge": "3eZbrw"}) == {"challenge": "3eZbrw"}
    assert slack.greeting({"type": "event_callback", "challenge": "3eZbrw"}) is None


def test_a_signature_of_the_body_may_be_written_in_base64() -> None:
    """As Shopify does."""
    verifier = BodySignature(OTHER, provider="shopify", header="X-Shopify-Hmac-Sha256", encoding="base64")
    signature = base64.b64encode(hmac.new(OTHER.encode(), b"{}", sha256).digest()).decode()
    assert isinstance(verifier.verify({"x-shopify-hmac-sha256": signature}, b"{}", at(0)), Verified)


@pytest.mark.parametrize("make", [StandardWebhooks, GitHub, Slack, Stripe])
@pytest.mark.parametrize("secrets", [None, "", {}, {"a": ""}, {"a": None}, "short", {f"n{n}": OTHER for n in range(9)}])
def test_without_a_proper_secret_nothing_is_declared(make: type[Stripe], secrets: dict[str, str]) -> None:
    """An environment variable that is not set must not open the door."""
    with pytest.raises(DeclarationError):
        make(secrets)


def test_a_secret_is_never_shown() -> None:
    """Neither a verifier nor an error about a secret says what it is."""
    verifier = StandardWebhooks({"2026": STANDARD_SECRET})
    with pytest.raises(DeclarationError) as caught:
        StandardWebhooks("whsec_not!base64!at!all")
    assert "MfKQ" not in repr(verifier) + repr(verifier._secrets)
    assert "not!base64" not in str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize("tolerance", ["31 minutes", "0s"])
def test_a_signature_holds_no_longer_than_its_id_is_kept(tolerance: str) -> None:
    """From as far ahead to as long ago: twice the tolerance is at most the hour for which an id is known."""
    with pytest.raises((DeclarationError, ValueError)):
        StandardWebhooks(STANDARD_SECRET, tolerance=tolerance)
    assert 2 * LONGEST_TOLERANCE <= KEPT
