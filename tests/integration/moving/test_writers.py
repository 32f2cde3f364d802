"""Writers that never pause, in other processes, while a store is exported."""

from __future__ import annotations

import asyncio
import io
import sys

from standfast.stores.transfer import records
from tests.fork_server import forked_exec
from tests.integration.moving.transfers import exported

WRITERS = ("ann", "bob")


async def test_every_acknowledged_commit_is_in_the_file_and_no_other(url: str) -> None:
    """The file is what all writers were told was written, to the last commit before the store was frozen."""
    writers = [await start(url, name) for name in WRITERS]
    told = [[await line_of(writer) for _ in range(20)] for writer in writers]

    data = await exported(url)

    for writer, lines in zip(writers, told, strict=True):
        lines.extend((await all_of(writer)).splitlines())
    said = {
        word: {(name, number) for name, lines in zip(WRITERS, told, strict=True) for number in numbers(lines, word)}
        for word in ("written", "refused")
    }
    found = {(record.key.parts[1], int(record.key.parts[2])) for record in records(io.BytesIO(data), "file")}
    assert said["refused"]
    assert found == said["written"]


async def start(url: str, name: str) -> asyncio.subprocess.Process:
    """Start a writer."""
    module = "tests.integration.moving.writer"
    return await forked_exec(sys.executable, "-m", module, url, name, stdout=asyncio.subprocess.PIPE)


async def line_of(writer: asyncio.subprocess.Process) -> str:
    """Return what a writer says next."""
    assert writer.stdout is not None
    return (await writer.stdout.readline()).decode()


async def all_of(writer: asyncio.subprocess.Process) -> str:
    """Return what a writer says until its end."""
    said, _ = await writer.communicate()
    assert writer.returncode == 0
    return said.decode()


def numbers(lines: list[str], word: str) -> list[int]:
    """Return the numbers of the commits that were told so."""
    return [int(line.split()[1]) for line in lines if line.split()[0] == word]
