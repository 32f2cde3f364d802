"""Every screen of the dashboard passes an automated accessibility check: light and dark, wide and narrow.

The check is axe-core (``axe/``, Mozilla Public License 2.0), which is only used here and is not part of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast.web.dashboard.screens import SCREENS
from tests.browser.chromium import started, window
from tests.browser.stage import TOKEN, Stage, go, look, stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.browser.chromium import Browser, Tab

pytestmark = pytest.mark.services

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
CHECK = """axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((each) =>
  each.id + ': ' + each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + node.failureSummary).join(' | ')))"""
CONTROLS = "a[href],button,input:not([type=hidden]),select,textarea,[tabindex='0']"
OUT_OF_TURN = "[tabindex]:not([tabindex='0']):not([tabindex='-1'])"
PREVIEWS = ("act/run.cancel?id=order-7", "act/runs.purge?status=failed", "act/run.restart?id=order-1")


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    """A browser for all tests of these pages."""
    with started() as address:
        yield address


@pytest.fixture
async def chromium(running: str) -> AsyncIterator[Browser]:
    """A window that knows nothing."""
    async with window(running) as opened:
        yield opened


@pytest.fixture
async def shop() -> AsyncIterator[Stage]:
    """A shop with something on every screen."""
    async with stage() as opened:
        yield opened


def addresses(shop: Stage) -> list[str]:
    """Return the address of every screen, of some previews and of a page that says no."""
    return [*map(shop.at, SCREENS), *(shop.at(each, "") for each in PREVIEWS), shop.at("run", "?id=none")]


async def violations(tab: Tab) -> list[str]:
    """Return what axe has against a page."""
    await tab.run(AXE)
    return list(await tab.run(CHECK))


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_screen_has_anything_that_keeps_people_out(
    chromium: Browser, shop: Stage, scheme: str, width: int
) -> None:
    """Names of controls, labels, order of headings, landmarks, contrast: nothing is found wrong on any screen."""
    tab = await chromium.tab("about:blank")
    await look(tab, scheme, width)
    await go(tab, shop.at("", f"?token={TOKEN}"))
    found: dict[str, list[str]] = {}
    for address in addresses(shop):
        await go(tab, address)
        wrong = await violations(tab)
        if await tab.run("document.documentElement.scrollWidth > window.innerWidth + 1"):
            wrong.append("the page is wider than the window")
        if wrong:
            found[address.removeprefix(shop.address)] = wrong
    assert found == {}


async def test_the_keyboard_reaches_every_control_in_the_order_of_the_page(chromium: Browser, shop: Stage) -> None:
    """Nothing takes the focus out of turn, and what has it can be seen."""
    tab = await chromium.tab(shop.at("", f"?token={TOKEN}"))
    for address in addresses(shop):
        await go(tab, address)
        await tab.run("document.getElementById('pause')?.click()")
        count = f'[...document.querySelectorAll("{CONTROLS}")]'
        visible = f"{count}.filter((e) => e.offsetParent !== null || e.closest('svg') || e.classList.contains('skip'))"
        wanted = await tab.run(f"{visible}.length")
        await tab.run("document.activeElement.blur(); window.order = []")
        places: list[int] = []
        for _ in range(min(wanted, 60)):
            key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            await tab.ask("Input.dispatchKeyEvent", type="rawKeyDown", **key)
            await tab.ask("Input.dispatchKeyEvent", type="keyUp", **key)
            places.append(await tab.run(f"{visible}.indexOf(document.activeElement)"))
        assert places == sorted(places), (address, places)
        assert -1 not in places, address
        assert not await tab.run(f'document.querySelectorAll("{OUT_OF_TURN}").length')
