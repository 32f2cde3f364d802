"""``standfast mcp`` with the official client, which starts it as a process of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.integration.cli.programs import ROOT, answer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.heavy  # real processes: once, on the default interpreter

MODULE = """
import os
import standfast as sf

desk = sf.Flow("desk")

@desk.action
async def greet(request: sf.Request, name: str) -> str:
    return f"hello {name} from {request.user} of {request.tenant}"

@desk.action(roles=["clerk"], concurrency=sf.Queue())
async def stamp(request: sf.Request) -> None: ...

app = sf.App(os.environ["STANDFAST_STORE"], flows=[desk], tools=[desk])
bare = sf.App(os.environ["STANDFAST_STORE"], flows=[desk])
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the module is."""
    (tmp_path / "office.py").write_text(MODULE)
    return str(tmp_path)


async def test_tools_are_called_over_stdin_and_stdout(folder: str, url: str) -> None:
    """For the user that was named, with the roles that were given."""
    arguments = ["-m", "standfast", "--tenant", "acme", "mcp", "office:app", "--app-dir", folder, "--as", "ada"]
    environment = {**os.environ, "STANDFAST_STORE": url, "PYTHONPATH": str(ROOT / "src")}
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    async with stdio_client(server, sys.stderr) as (incoming, outgoing), ClientSession(incoming, outgoing) as client:
        await client.initialize()
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("desk__greet", {"name": "Bob"})
    assert names == ["desk__greet"]
    assert result.structured_content == {"result": "hello Bob from ada of acme"}


def test_an_application_without_tools_has_nothing_to_offer(folder: str, url: str) -> None:
    """It says how to have some."""
    code, said = answer(url, "mcp", "office:bare", "--app-dir", folder)
    assert code == 4
    assert "tools=[shop]" in said


def test_it_says_which_tools_there_are_and_what_they_collide_by(folder: str, url: str) -> None:
    """Also which of them nothing keeps apart, and who may use them; nothing is served."""
    code, said = answer(url, "mcp", "office:app", "--app-dir", folder, "--list")
    rows = [line.split() for line in said.splitlines()]
    assert code == 0
    assert rows[1] == ["desk__greet", "allow", "nothing"]
    assert " ".join(rows[2]) == "desk__stamp queue nothing, unless the client names a session clerk"
