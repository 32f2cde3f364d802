"""The chat page in a real browser."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.web.app import App
from standfast.web.chat import Chat
from tests.browser.app_server import served
from tests.browser.chromium import started, window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.browser.app_server import Line
    from tests.browser.chromium import Browser

pytestmark = pytest.mark.services

WORDS = ("You", " said:", " ")
NASTY = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&lt;b&gt;"
CONNECTED = "document.querySelector('#connection[data-state=open]')"


class Echo:
    """A chat that says again what it was told, a word at a time, when it is told to go on."""

    def __init__(self, policy: Any = "queue") -> None:
        self.go = asyncio.Semaphore(0)
        self.kept: list[str] = []
        self.flow = sf.Flow("echo", description="Says it again.")
        self.flow.action(name="append_message")(self._append)
        self.flow.action(name="respond", concurrency=policy)(self._respond)
        self.app = App("memory://", flows=[self.flow], chats=[Chat(self.flow)], limits=sf.web.AppLimits(grace=0))

    async def _append(self, request: sf.Request, text: str) -> None:
        del request
        self.kept.append(text)

    async def _respond(self, request: sf.Request, text: str) -> None:
        for word in (*WORDS, text):
            await self.go.acquire()
            request.emit(word)

    def go_on(self, words: int = 1_000) -> None:
        """Let so many words more be said."""
        for _ in range(words):
            self.go.release()


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    """A browser for all tests of this page."""
    with started() as address:
        yield address


@pytest.fixture
async def chromium(running: str) -> AsyncIterator[Browser]:
    """A window that knows nothing."""
    async with window(running) as opened:
        yield opened


@pytest.fixture
async def echo() -> Echo:
    """A chat whose answers wait to be let go on."""
    return Echo()


@pytest.fixture
async def line(echo: Echo) -> AsyncIterator[Line]:
    """The way to its server."""
    async with served(echo.app) as opened:
        yield opened


def said(text: str) -> str:
    """Return what is answered to a text."""
    return "".join(WORDS) + text


def completed(many: int) -> str:
    """Return what is true in a page that shows so many whole answers."""
    return f"document.querySelectorAll('.answer[data-state=completed]').length === {many}"


async def test_a_burst_is_answered_in_order_in_both_tabs(chromium: Browser, echo: Echo, line: Line) -> None:
    """What is written in one tab is seen in the other one of the same session, with the answers in order."""
    first = await chromium.tab(line.page("echo"))
    await first.until(CONNECTED)
    second = await chromium.tab(line.page("echo"))
    await second.until(CONNECTED)
    for text in ("one", "two", "three"):
        await first.write(text)
    await second.until("document.querySelectorAll('.said').length === 3")
    assert await first.until("document.querySelector('.answer:last-child .note')?.textContent.startsWith('waiting: 1')")
    echo.go_on()
    for tab in (first, second):
        await tab.until(completed(3))
        shown = [text for pair in ("one", "two", "three") for text in (pair, said(pair))]
        assert await tab.texts("#log .words") == shown
        assert tab.complaints == []
    assert echo.kept == ["one", "two", "three"]


async def test_a_line_that_is_cut_in_the_middle_of_an_answer_loses_nothing(
    chromium: Browser, echo: Echo, line: Line
) -> None:
    """The rest of the answer comes once, and what was written meanwhile is sent once."""
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    await tab.write("one")
    echo.go_on(2)
    await tab.until("document.querySelector('.answer .words')?.textContent === 'You said:'")
    line.cut()
    await tab.until("document.querySelector('#connection:not([data-state=open])')")
    await tab.write("two")
    echo.go_on()
    line.mend()
    await tab.until(completed(2))
    assert await tab.texts("#log .words") == ["one", said("one"), "two", said("two")]
    assert echo.kept == ["one", "two"]


async def test_an_answer_that_begins_again_replaces_what_was_shown(chromium: Browser) -> None:
    """What an attempt told that failed is not shown in front of what the next one tells."""
    flow, attempts = sf.Flow("again"), asyncio.Event()

    @flow.action
    async def append_message(request: sf.Request, text: str) -> None:
        del request, text

    @flow.action(concurrency="queue", durable=True, retry=sf.Retry(attempts=2, delay=0.01))
    async def respond(request: sf.Request, text: str) -> None:
        request.emit(f"half of {text}")
        request.emit("a tool", name="tool")
        if request.attempt == 1:
            await attempts.wait()
            raise ValueError("it breaks in the middle")
        request.emit(" and the rest")

    async with served(App("memory://", flows=[flow], chats=[Chat(flow)])) as line:
        tab = await chromium.tab(line.page("again"))
        await tab.until(CONNECTED)
        await tab.write("tea")
        await tab.until("document.querySelector('.answer .aside')")
        attempts.set()
        await tab.until(completed(1))
        assert await tab.texts(".answer .words") == ["half of tea and the rest"]
        assert await tab.texts(".answer .aside") == ["tool: a tool"]


async def test_markup_in_a_message_stays_text(chromium: Browser, echo: Echo, line: Line) -> None:
    """Neither a message nor an answer becomes part of the page."""
    echo.go_on()
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    await tab.write(NASTY)
    await tab.until(completed(1))
    assert await tab.texts("#log .words") == [NASTY, said(NASTY)]
    assert await tab.run("document.querySelectorAll('#log img, #log script, #log b').length") == 0
    assert await tab.run("document.title") == "echo"
    assert tab.complaints == []


async def test_a_script_in_the_page_would_not_run(chromium: Browser, line: Line) -> None:
    """The policy of the page stops what text alone should never become."""
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    markup = json.dumps("<img src=x onerror=\"document.title='taken'\">")
    script = f"document.body.insertAdjacentHTML('beforeend', {markup}); new Promise((go) => setTimeout(go, 50))"
    await tab.run(script)
    assert await tab.run("document.title") == "echo"
    assert any("inline" in complaint for complaint in tab.complaints)


async def test_what_was_dropped_is_shown(chromium: Browser) -> None:
    """Under restart the answer to the older message says that a newer one took its place."""
    echo = Echo("restart")
    async with served(echo.app) as line:
        tab = await chromium.tab(line.page("echo"))
        await tab.until(CONNECTED)
        await tab.write("one")
        await tab.until("document.querySelector('.answer[data-state=running]')")
        await tab.write("two")
        await tab.until("document.querySelector('.answer[data-state=superseded]')")
        echo.go_on()
        await tab.until(completed(1))
        assert (await tab.texts(".answer .note"))[0] == "dropped: a newer message took its place"


async def test_what_was_refused_is_shown_and_can_be_sent_again(chromium: Browser) -> None:
    """Under reject the second message says why it is not answered; later it is."""
    echo = Echo("reject")
    async with served(echo.app) as line:
        tab = await chromium.tab(line.page("echo"))
        await tab.until(CONNECTED)
        await tab.write("one")
        await tab.until("document.querySelector('.answer')")
        await tab.write("two")
        assert "is taken by the request" in await tab.until("document.querySelector('.said.bad .note')?.textContent")
        echo.go_on()
        await tab.until(completed(1))
        await tab.run("document.querySelector('.said.bad button').click()")
        await tab.until(completed(2))
    assert echo.kept == ["one", "two"]


async def test_an_answer_can_be_stopped(chromium: Browser, echo: Echo, line: Line) -> None:
    """A button beside an answer that is being written ends it."""
    echo.go_on(1)
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    await tab.write("one")
    await tab.until("document.querySelector('.answer button')")
    await tab.run("document.querySelector('.answer button').click()")
    await tab.until("document.querySelector('.answer[data-state=cancelled]')")


async def test_a_new_conversation_is_another_one(chromium: Browser, echo: Echo, line: Line) -> None:
    """The old one is not shown in it."""
    echo.go_on()
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    await tab.write("one")
    await tab.until(completed(1))
    before = await tab.run("document.getElementById('text').dataset.session")
    await tab.run("document.getElementById('fresh').click()")
    await tab.until(f"document.getElementById('text').dataset.session !== {json.dumps(before)} && {CONNECTED}")
    assert await tab.texts("#log li") == []


async def test_the_page_fits_a_phone_and_follows_the_dark(chromium: Browser, line: Line) -> None:
    """Nothing is wider than the screen, and the ground is dark where people want it dark."""
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    await tab.write("w" * 300)
    await tab.until("document.querySelector('.said')")
    await tab.ask("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=2, mobile=True)
    assert await tab.run("document.documentElement.scrollWidth") <= 360
    assert await tab.run("document.querySelector('main').scrollWidth") <= 360
    light = await tab.run("getComputedStyle(document.body).backgroundColor")
    await tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = await tab.run("getComputedStyle(document.body).backgroundColor")
    assert (light, dark) == ("rgb(245, 246, 248)", "rgb(20, 23, 27)")


async def test_everything_has_a_name_for_those_who_do_not_see_it(chromium: Browser, line: Line) -> None:
    """The box, the buttons and the regions that tell news are named or live."""
    tab = await chromium.tab(line.page("echo"))
    await tab.until(CONNECTED)
    nodes = (await tab.ask("Accessibility.getFullAXTree"))["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}
    assert {("textbox", "Your message"), ("button", "Send"), ("button", "New chat")} <= named
    assert "status" in {role for role, _ in named}
    assert not any(name == "" for role, name in named if role in {"button", "textbox", "list"})
