"""What ``standfast serve`` listens with."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING

from standfast.cli.http_server import on_port
from tests.fork_server import forked_exec

if TYPE_CHECKING:
    from pathlib import Path


def test_a_connection_sends_at_once_what_it_is_given() -> None:
    """An answer is written in two parts: the second must not wait until the caller has confirmed the first."""
    with (
        on_port("127.0.0.1", 0, patience=30) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_server_whose_output_is_read_no_more_still_ends_by_a_signal(tmp_path: Path) -> None:
    """The program that read its lines has died; it must not live for ever because of that."""
    (tmp_path / "desk.py").write_text('import standfast as sf\napp = sf.App("memory://", flows=[sf.Flow("a")])\n')
    command = [sys.executable, "-m", "standfast", "serve", "desk:app", "--app-dir", str(tmp_path)]
    command += ["--uds", str(tmp_path / "desk.sock")]
    reading, writing = os.pipe()
    server = await forked_exec(*command, stdout=writing, stderr=asyncio.subprocess.DEVNULL)
    os.close(writing)
    try:
        line = await asyncio.to_thread(os.read, reading, 100)
        assert line
        os.close(reading)
        answer, asking = await asyncio.open_unix_connection(tmp_path / "desk.sock")
        asking.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert await answer.read()  # it serves, and hears signals
        asking.close()
        server.terminate()
        await asyncio.wait_for(server.wait(), 20)
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
