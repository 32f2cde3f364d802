"""Webhooks in bursts: many deliveries about one thing become one run, of what is newest, each counted once."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.web.signatures import StandardWebhooks
from tests.integration.webhooks.provider import NEW, Worker, said, signed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ACCEPTED, DUPLICATE = (202, "accepted"), (200, "duplicate")


class Archive:
    """What is told of documents, put together for a quarter of a second."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.flow = sf.Flow("archive")
        self.sync = self.flow.action(name="sync", concurrency=sf.Debounce("250ms", key="tenant", collapse="all"))(
            self._sync
        )
        self.follow = self.flow.action(name="follow", concurrency=sf.Debounce("250ms", key="tenant"))(self._follow)

    async def _sync(self, request: sf.Request, document: dict[str, Any]) -> str:
        self.runs.append([each["document"]["text"] for each in request.inputs])
        return str(document["text"])

    async def _follow(self, _request: sf.Request, document: dict[str, Any]) -> str:
        self.runs.append([document["text"]])
        return str(document["text"])

    def app(self, url: str) -> sf.App:
        """Return one worker."""
        webhook = sf.web.Webhook(
            "letters",
            StandardWebhooks(NEW),
            {"changed": self.sync, "moved": self.follow},
            event_time=lambda delivery: delivery.payload.get("at"),
        )
        return sf.App(url, flows=[self.flow], webhooks=[webhook])


@pytest.fixture
def archive() -> Archive:
    """What is done with deliveries, whichever worker takes them."""
    return Archive()


@pytest.fixture
async def pair(archive: Archive, tmp_path: Path) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two workers on one store."""
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path}/archive.db"
        one, two = [Worker(await stack.enter_async_context(archive.app(url))) for _ in range(2)]
        yield one, two


async def deliver(worker: Worker, text: str, at: float | str | None = None, kind: str = "changed") -> Any:
    """Send a delivery, whose id is its text."""
    body = json.dumps({"type": kind, "text": text, "at": at}).encode()
    return await worker.deliver(body, signed(body, text))


async def test_a_burst_of_deliveries_is_one_run_and_each_counts_once(
    pair: tuple[Worker, Worker], archive: Archive
) -> None:
    """One that is sent again is a duplicate, at whichever worker, while the burst is collected and after it has run."""
    answers = [await deliver(pair[n % 2], text) for n, text in enumerate("aabcb")]
    status = await pair[0].ended(answers[0])
    late = await deliver(pair[1], "c")

    assert [said(each) for each in answers] == [ACCEPTED, DUPLICATE, ACCEPTED, ACCEPTED, DUPLICATE]
    assert {each.json()["requestId"] for each in (*answers, late)} == {answers[0].json()["requestId"]}
    assert (archive.runs, status["result"], said(late)) == ([["a", "b", "c"]], "c", DUPLICATE)


@pytest.mark.parametrize(("old", "new"), [(1, 2.5), ("2026-05-01T12:00:00Z", "2026-05-01T14:00:00+01:00")])
async def test_an_old_delivery_that_comes_late_does_not_replace_a_newer_one(
    pair: tuple[Worker, Worker], archive: Archive, old: float | str, new: float | str
) -> None:
    """The order is that of the events, where the webhook says when they happened."""
    answers = [await deliver(pair[0], "new", new), await deliver(pair[1], "old", old)]
    status = await pair[0].ended(answers[1])

    assert (archive.runs, status["result"]) == ([["old", "new"]], "new")


async def test_an_old_delivery_that_comes_after_a_newer_one_was_run_changes_nothing(
    pair: tuple[Worker, Worker], archive: Archive
) -> None:
    """It is accepted, and ends superseded by that one."""
    new = await deliver(pair[0], "new", 2, "moved")
    await pair[0].ended(new)
    old = await deliver(pair[1], "old", 1, "moved")
    status = await pair[1].ended(old)

    assert (status["status"], status["by"], archive.runs) == ("superseded", new.json()["requestId"], [["new"]])


async def test_deliveries_at_once_are_all_in_one_burst(pair: tuple[Worker, Worker], archive: Archive) -> None:
    """None is lost between two workers."""
    answers = await asyncio.gather(*(deliver(pair[n % 2], str(n)) for n in range(10)))
    for each in answers:
        await pair[0].ended(each)

    assert {said(each) for each in answers} == {ACCEPTED}
    assert sorted(text for run in archive.runs for text in run) == sorted(map(str, range(10)))
