"""Everything that happens to webhooks, against applications on a real store: each gets the answer of the table."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import StoreUnavailableError
from tests.integration.webhooks.provider import (
    JSON,
    LETTER,
    NEW,
    OLD,
    RETIRED,
    SOON,
    Office,
    Worker,
    client_of,
    said,
    signed,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

ACCEPTED, DUPLICATE, SKIPPED, IGNORED = (202, "accepted"), (200, "duplicate"), (200, "skipped"), (202, "ignored")
UNAUTHORIZED = {"title": "Unauthorized", "status": 401}
HOLD = b'{"type":"hold","room":"7"}'


@pytest.fixture
def office() -> Office:
    """What is done with deliveries, whichever worker takes them."""
    return Office()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that workers share."""
    return f"sqlite:///{tmp_path}/post.db"


@pytest.fixture
async def pair(office: Office, url: str) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two workers on one store."""
    async with AsyncExitStack() as stack:
        one, two = [Worker(await stack.enter_async_context(office.app(url))) for _ in range(2)]
        yield one, two
        office.let_go.set()


@pytest.fixture
async def worker(office: Office, url: str) -> AsyncIterator[Worker]:
    """One worker."""
    async with office.app(url) as app:
        yield Worker(app)
        office.let_go.set()


# --- the same delivery, again and again ------------------------------------------------------------------------------


async def test_of_many_of_one_delivery_at_once_one_is_accepted(pair: tuple[Worker, Worker], office: Office) -> None:
    """Whichever worker they come to; all name the same request, which runs once."""
    headers = signed(LETTER)
    answers = await asyncio.gather(*(pair[n % 2].deliver(LETTER, headers) for n in range(20)))
    await pair[0].ended(answers[0])

    assert Counter(map(said, answers)) == {ACCEPTED: 1, DUPLICATE: 19}
    assert len({answer.json()["requestId"] for answer in answers}) == 1
    assert office.taken == ["msg_1"]


async def test_a_delivery_that_is_sent_again_later_is_a_duplicate(pair: tuple[Worker, Worker], office: Office) -> None:
    """After it has run, at the other worker, and signed anew as providers do when they try again."""
    first = await pair[0].deliver()
    await pair[0].ended(first)
    again = [await each.deliver(LETTER, signed(LETTER, off=off)) for each in pair for off in (0, 5)]

    assert {said(answer) for answer in again} == {DUPLICATE}
    assert {answer.json()["requestId"] for answer in again} == {first.json()["requestId"]}
    assert office.taken == ["msg_1"]


async def test_a_duplicate_is_known_after_all_workers_have_ended(office: Office, url: str) -> None:
    """What was accepted lies in the store."""
    async with office.app(url) as app:
        first = await Worker(app).deliver()
    async with office.app(url) as app:
        again = await Worker(app).deliver()
        await Worker(app).ended(again)

    assert [said(first), said(again)] == [ACCEPTED, DUPLICATE]
    assert office.taken == ["msg_1"]


async def test_what_else_is_sent_under_the_id_of_a_delivery_is_refused(worker: Worker, office: Office) -> None:
    """It is signed, but it is not the delivery that was answered."""
    other = b'{"type":"letter","to":"Bob"}'
    await worker.ended(await worker.deliver())
    answer = await worker.deliver(other, signed(other))

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:standfast:idempotency-mismatch")
    assert office.taken == ["msg_1"]


async def test_a_captured_delivery_does_not_run_again(worker: Worker, office: Office) -> None:
    """The same bytes are a duplicate; under another id, or with a newer time, the signature does not hold."""
    headers = signed(LETTER)
    await worker.ended(await worker.deliver(LETTER, headers))
    renamed = await worker.deliver(LETTER, headers | {"webhook-id": "msg_2"})
    renewed = await worker.deliver(LETTER, headers | {"webhook-timestamp": signed(LETTER, off=1)["webhook-timestamp"]})

    assert said(await worker.deliver(LETTER, headers)) == DUPLICATE
    assert [renamed.status_code, renewed.status_code] == [401, 401]
    assert office.taken == ["msg_1"]


# --- what nobody has signed, or not now ------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-100_000, -302, 303, 100_000])
async def test_a_signature_that_is_old_or_from_ahead_is_refused(worker: Worker, office: Office, off: float) -> None:
    """More than five minutes; and not a word about why."""
    answer = await worker.deliver(LETTER, signed(LETTER, off=off))
    assert (answer.status_code, answer.json()) == (401, UNAUTHORIZED)
    assert office.taken == []


@pytest.mark.parametrize("off", [-295, 295])
async def test_clocks_may_differ_by_a_few_minutes(worker: Worker, off: float) -> None:
    """Nobody's clock is right."""
    assert said(await worker.deliver(LETTER, signed(LETTER, off=off))) == ACCEPTED


@pytest.mark.parametrize(
    "body", [LETTER + b" ", LETTER[:-1], LETTER.replace(b"Ada", b"Eve"), b"", LETTER.swapcase(), b"\xff" + LETTER]
)
async def test_a_body_that_was_changed_is_refused(worker: Worker, office: Office, body: bytes) -> None:
    """By a single byte, even one that means nothing."""
    answer = await worker.deliver(body, signed(LETTER))
    assert (answer.status_code, answer.json()) == (401, UNAUTHORIZED)
    assert office.taken == []


@pytest.mark.parametrize("left_out", ["webhook-id", "webhook-timestamp", "webhook-signature"])
async def test_a_delivery_without_a_part_of_its_signature_is_refused(worker: Worker, left_out: str) -> None:
    """All of it is needed."""
    headers = {name: value for name, value in signed(LETTER).items() if name != left_out}
    assert (await worker.deliver(LETTER, headers)).json() == UNAUTHORIZED


@pytest.mark.parametrize(("secret", "status"), [(NEW, 202), (OLD, 202), (RETIRED, 401)])
async def test_secrets_are_changed_without_losing_a_delivery(worker: Worker, secret: str, status: int) -> None:
    """The new and the old one hold while both are given; one that was taken out holds no more."""
    assert (await worker.deliver(LETTER, signed(LETTER, secret=secret))).status_code == status


async def test_a_delivery_that_two_secrets_have_signed_is_one(worker: Worker, office: Office) -> None:
    """As providers send it while a secret is changed; and the same again with one of them is a duplicate."""
    old, new = signed(LETTER, secret=OLD), signed(LETTER, secret=NEW)
    both = new | {"webhook-signature": f"{old['webhook-signature']} {new['webhook-signature']}"}
    first = await worker.deliver(LETTER, both)
    await worker.ended(first)

    assert [said(first), said(await worker.deliver(LETTER, old))] == [ACCEPTED, DUPLICATE]
    assert office.taken == ["msg_1"]


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "multipart/form-data; boundary=x", "application/xml", ""])
async def test_what_is_neither_json_nor_a_form_is_invalid(worker: Worker, kind: str) -> None:
    """If it is signed; otherwise it is not even looked at."""
    answer = await worker.deliver(LETTER, signed(LETTER) | {"content-type": kind})
    unsigned = await worker.deliver(LETTER, {"content-type": kind})
    assert [said(answer), unsigned.status_code] == [(400, "invalid"), 401]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 50_000, b'{"type":"number","a":"not a number"}'])
async def test_what_does_not_fit_is_invalid_and_is_not_quoted(worker: Worker, body: bytes) -> None:
    """The reason names the place, and never what was there."""
    answer = await worker.deliver(body, signed(body))
    assert said(answer) == (400, "invalid")
    assert "not a number" not in answer.text


async def test_ten_megabytes_are_refused_without_being_kept(worker: Worker, office: Office) -> None:
    """413, whether the length is told or not."""
    body = b"x" * 10_000_000

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b"x" * 65_536

    told = await worker.deliver(body, signed(body))
    untold = await worker.post("/webhooks/letters", pieces(), JSON)
    assert [told.status_code, untold.status_code] == [413, 413]
    assert told.json()["type"] == "urn:standfast:body-too-large"
    assert office.taken == []


async def test_of_ten_megabytes_that_are_allowed_the_action_gets_what_it_needs(office: Office, url: str) -> None:
    """What is kept has a limit of its own; above it a delivery is invalid, and the reason says how much is too much."""
    body = json.dumps({"type": "letter", "text": "x" * 10_000_000}).encode()
    async with office.app(url, max_body=11_000_000) as app:
        whole = await Worker(app).deliver(body, signed(body))
    async with office.app(url, max_body=11_000_000, inputs=lambda delivery: {"parcel": len(delivery.payload)}) as app:
        answers = [await Worker(app).deliver(body, signed(body)) for _ in range(2)]
        status = await Worker(app).ended(answers[0])

    assert (said(whole), "bytes" in whole.json()["reason"]) == ((400, "invalid"), True)
    assert ([said(each) for each in answers], status["status"]) == ([ACCEPTED, DUPLICATE], "completed")


@pytest.mark.parametrize("messages", [[], [{"type": "http.request", "body": LETTER[:9], "more_body": True}]])
async def test_a_body_that_stops_coming_is_not_waited_for(
    office: Office, url: str, messages: list[dict[str, Any]]
) -> None:
    """408, after the time that a body has."""
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in signed(LETTER).items()]
    scope = {"type": "http", "method": "POST", "path": "/webhooks/letters", "headers": headers, "query_string": b""}
    async with office.app(url, body_time="30ms") as app, asyncio.timeout(SOON):
        await app(scope, receive, send)
    assert sent[0]["status"] == 408
    assert office.taken == []


# --- keys that are taken ---------------------------------------------------------------------------------------------


async def test_a_delivery_is_skipped_while_a_durable_one_has_the_key(
    pair: tuple[Worker, Worker], office: Office
) -> None:
    """The one that runs survives its process, so the provider need not come again; it is named, and can be followed."""
    first = await pair[0].deliver(HOLD, signed(HOLD, "msg_1"))
    await asyncio.wait_for(office.held.wait(), SOON)
    second = await pair[1].deliver(HOLD, signed(HOLD, "msg_2"))
    office.let_go.set()
    status = await pair[1].ended(second)

    assert [said(first), said(second)] == [ACCEPTED, SKIPPED]
    assert second.json() == {"status": "skipped", "reason": "in_flight", "requestId": first.json()["requestId"]}
    assert status["status"] == "completed"


async def test_a_delivery_has_to_come_again_while_one_that_is_not_durable_has_the_key(
    pair: tuple[Worker, Worker], office: Office
) -> None:
    """What runs for somebody on a connection is lost with its process, so the provider is told to come back."""
    body = b'{"parcel":{"room":"7"}}'
    attended = asyncio.create_task(pair[0].post("/flows/post/hold", body))
    await asyncio.wait_for(office.held.wait(), SOON)
    busy = await pair[1].deliver(HOLD, signed(HOLD))
    office.let_go.set()
    await asyncio.wait_for(attended, SOON)

    assert said(busy) == (503, "busy")
    assert int(busy.headers["retry-after"]) >= 1
    assert said(await pair[1].deliver(HOLD, signed(HOLD))) == ACCEPTED


async def test_a_delivery_that_was_skipped_is_taken_when_it_comes_again(worker: Worker, office: Office) -> None:
    """It was never recorded, so it is no duplicate."""
    first = await worker.deliver(HOLD, signed(HOLD, "msg_1"))
    await asyncio.wait_for(office.held.wait(), SOON)
    skipped = await worker.deliver(HOLD, signed(HOLD, "msg_2"))
    office.let_go.set()
    await worker.ended(first)

    assert [said(skipped), said(await worker.deliver(HOLD, signed(HOLD, "msg_2")))] == [SKIPPED, ACCEPTED]


async def test_the_same_delivery_is_a_duplicate_and_not_skipped(worker: Worker, office: Office) -> None:
    """While it runs itself."""
    first = await worker.deliver(HOLD, signed(HOLD))
    await asyncio.wait_for(office.held.wait(), SOON)
    again = await worker.deliver(HOLD, signed(HOLD))
    assert (said(again), again.json()["requestId"]) == (DUPLICATE, first.json()["requestId"])


async def test_a_line_that_is_full_says_when_to_come_again(worker: Worker, office: Office) -> None:
    """429, and nothing of it is recorded."""
    body = b'{"type":"wait","room":"7"}'
    answers = [await worker.deliver(body, signed(body, f"msg_{n}")) for n in range(3)]
    office.let_go.set()
    for each in answers[:2]:
        await worker.ended(each)

    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert int(answers[2].headers["retry-after"]) >= 1
    assert said(await worker.deliver(body, signed(body, "msg_2"))) == ACCEPTED


# --- and the rest of the table ---------------------------------------------------------------------------------------


async def test_an_event_that_nobody_wants_is_ignored(worker: Worker) -> None:
    """202, so that the provider does not come again."""
    body = b'{"type":"parcel"}'
    assert said(await worker.deliver(body, signed(body))) == IGNORED


@pytest.mark.parametrize("methods", [("read",), ("commit", "update"), ("read", "commit", "update")])
async def test_a_store_that_does_not_answer_means_that_a_delivery_comes_again(
    worker: Worker, office: Office, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
) -> None:
    """503 with a time; afterwards it is taken as if it came for the first time."""

    async def broken(*_: object, **__: object) -> None:
        raise StoreUnavailableError("canary", "it does not answer")

    with monkeypatch.context() as patch:
        for method in methods:
            patch.setattr(worker.app.space.store, method, broken)
        answer = await worker.deliver()
    taken = await worker.deliver()
    await worker.ended(taken)

    assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
    assert "canary" not in answer.text
    assert (said(taken), office.taken) == (ACCEPTED, ["msg_1"])


@pytest.mark.parametrize("part", ["inputs", "session", "principal", "event_time"])
async def test_a_function_of_the_declaration_that_fails_is_no_fault_of_the_provider(
    office: Office, url: str, part: str
) -> None:
    """500, without a word about why; nothing is recorded, so it may come again."""

    def fail(_: object) -> Any:
        raise KeyError("canary")

    async with office.app(url, **{part: fail}) as app:
        answer = await Worker(app).deliver()
    assert (answer.status_code, answer.json()) == (500, {"status": "failed"})


async def test_a_worker_that_is_not_open_takes_nothing(office: Office, url: str) -> None:
    """503, so that it is sent to another one, or later."""
    answer = await Worker(office.app(url)).deliver()
    assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)


async def test_no_other_method_is_taken(worker: Worker) -> None:
    """405 by every other one, and it says which is right."""
    async with client_of(worker.app, "203.0.113.9") as client:
        answers: list[httpx.Response] = [
            await client.request(method, "/webhooks/letters", headers=signed(b""))
            for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")
        ]
    assert {(answer.status_code, answer.headers["allow"]) for answer in answers} == {(405, "POST")}
