"""Takes the pictures of the dashboard that are in the docs: ``python -m tests.browser.pictures docs/_static``."""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.chromium import started, window
from tests.browser.stage import TOKEN, go, in_a_circle, look, stage

if TYPE_CHECKING:
    from tests.browser.chromium import Tab

WIDTH = 1180
PICTURES = {
    "now": ("", ""),
    "runs": ("runs", ""),
    "run": ("run", "?id=order-7"),
    "lines": ("lines", ""),
    "line": ("line", "?at=1&at=&at=gpu"),
    "why": ("why", "?run=order-10"),
    "flows": ("flows", ""),
    "schedules": ("schedules", ""),
    "limits": ("limits", ""),
    "workers": ("workers", ""),
    "store": ("store", ""),
    "audit": ("audit", ""),
    "compare": ("compare", "?id=order-1&with=order-2"),
    "test": ("test", "?id=order-1"),
    "preview": ("act/lock.release", ""),
    "bulk": ("act/runs.retry", "?status=failed"),
}
"""Each picture: the page that it is of."""


async def picture(tab: Tab, path: Path, tallest: int = 1_000) -> None:
    """Write what a tab shows, from its top to its end or to so many pixels."""
    height = min(tallest, int(await tab.run("document.documentElement.scrollHeight")))
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
    answer = await tab.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(answer["data"]))


async def main(folder: Path) -> None:
    """Take all pictures, in light and dark."""
    with started() as browser, tempfile.TemporaryDirectory() as home:
        async with stage(f"sqlite:///{home}/shop.db") as shop, window(browser) as opened:
            tab = await opened.tab(shop.at("", f"?token={TOKEN}"))
            entry = (await shop.engine.space.explain("ledger")).holders[0].entry
            for scheme in ("light", "dark"):
                await look(tab, scheme, WIDTH, 420)
                suffix = "" if scheme == "light" else "-dark"
                for name, (path, query) in PICTURES.items():
                    if name == "limits":  # what an operator has set for a while
                        await shop.engine.set_limit("report", 2, lasts="2 hours")
                    at = f"?at=1&at=&at=ledger&entry={entry}" if name == "preview" else query
                    await go(tab, shop.at(path, at))
                    await picture(tab, folder / f"dashboard-{name}{suffix}.png")
                async with in_a_circle(shop.engine.space):
                    waiter = (await shop.engine.space.explain("accounts")).waiters[0].entry
                    await go(tab, shop.at("why", f"?at=1&at=&at=accounts&entry={waiter}"))
                    await picture(tab, folder / f"dashboard-circle{suffix}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
