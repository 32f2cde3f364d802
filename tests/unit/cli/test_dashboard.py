"""``standfast dashboard``: a store in a browser, on this machine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx

import standfast as sf

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_printed_address_opens_the_store_once_and_the_command_ends_on_ctrl_c(tmp_path: Path) -> None:
    """It listens on loopback, which is no credential, and needs no code of the application; ``--as`` names its user."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with sf.open(url) as space, space.mutex("account-42").hold():
        command = [sys.executable, "-m", "standfast", "dashboard", url, "--port", "0", "--as", "ada"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: ASYNC220 -- it is waited for line by line
            assert process.stdout is not None
            found = re.search(r"(http://127\.0\.0\.1:\d+)(/\?token=\S+)", process.stdout.readline())
            assert found is not None
            async with httpx.AsyncClient(base_url=found[1], follow_redirects=True, timeout=30) as http:
                assert (await http.get("/lines")).status_code == 401
                opened = await http.get(found[2])
                assert opened.status_code == 200
                assert "<span>ada</span>" in opened.text
                assert "account-42" in (await http.get("/lines")).text
                assert (await http.get("/lines", headers={"host": "evil.test"})).status_code == 421
            async with httpx.AsyncClient(base_url=found[1], follow_redirects=True, timeout=30) as http:
                assert (await http.get(found[2])).status_code == 401
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
