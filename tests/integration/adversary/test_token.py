"""Without authentication there is a token: this machine is no credential, whatever is in front of it."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.integration.adversary import wire
from tests.integration.adversary.stage import BARE, DESK, FRONTS, served
from tests.integration.cli.programs import PATIENCE, ROOT, SHOWN, TOKEN, Program, answer, read_some

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.adversary.stage import Stage
    from tests.integration.cli.terminals import Terminal

pytestmark = pytest.mark.services

PATHS = ("/flows/desk/note", "/mcp", "/webhooks/unsigned", "/chat/desk/messages", "/requests/r1", "/openapi.json")
SERVE = ("serve", f"{DESK}:open_without_tools", "--app-dir", str(ROOT))


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("host", [BARE, "desk.example", "localhost", "127.0.0.1"])
def test_this_machine_is_no_credential(unguarded: Stage, front: str, host: str) -> None:
    """Neither directly nor through a proxy that adds nothing, under whatever name; only the token is."""
    base = unguarded.behind(front)
    with httpx.Client(base_url=base, headers={"Host": host}, timeout=PATIENCE) as client:
        for path in PATHS:
            assert client.post(path, json={"text": "x"}).status_code == 401, path
        taken = client.post("/flows/desk/note", json={"text": "with the token"}, headers=SHOWN)
        letter = SHOWN | {"webhook-id": f"{front}-{host}"}
        delivered = client.post("/webhooks/unsigned", json={"a": "b"}, headers=letter)
    assert (taken.status_code, delivered.status_code) == (200, 202)


def test_the_token_is_shown_on_the_terminal_and_nowhere_else(tmp_path: Path, terminal: Terminal) -> None:
    """With an address that a browser opens; it is not in the log, and a new one each time."""
    log = tmp_path / "log"
    url = f"sqlite:///{tmp_path}/store.db"
    options: dict[str, Any] = {
        "stdin": terminal.theirs,
        "stdout": terminal.theirs,
        "environment": {"STANDFAST_TOKEN": ""},
    }
    with log.open("wb") as file:
        program = Program(url, *SERVE, "--port", "0", stderr=file, **options)
        try:
            terminal.read_until(b"?token=sf_")
            while not terminal.shown.rpartition(b"?token=")[2].endswith(b"\n"):
                terminal.shown += read_some(terminal.ours)
            said = terminal.shown.decode()
            found = re.search(r"open (http://\S+/chat/desk/)\?token=(sf_\S+)", said)
            assert found is not None, said
            page, token = found[1], found[2]
            with httpx.Client(timeout=PATIENCE) as browser:
                assert browser.get(page).status_code == 401
                opened = browser.get(f"{page}?token={token}", follow_redirects=True)
                assert (opened.status_code, str(opened.url)) == (200, page)
                assert browser.get(f"{page}chat.js").status_code == 200
        finally:
            program.process.terminate()
            program.process.wait(PATIENCE)
    assert token not in log.read_text()


@pytest.mark.parametrize("option", [(), ("--quiet",)])
def test_where_there_is_no_terminal_no_token_is_shown(tmp_path: Path, option: tuple[str, ...]) -> None:
    """What is printed there is kept in a log: it refuses to start, and says what to do."""
    program = Program(
        f"sqlite:///{tmp_path}/store.db",
        *SERVE,
        *option,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        environment={"STANDFAST_TOKEN": ""},
    )
    said = program.process.communicate(timeout=PATIENCE)[0].decode()
    assert program.process.returncode == 4
    assert "no terminal to show its token on" in said
    assert "STANDFAST_TOKEN" in said
    assert "sf_" not in said


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    """And is not repeated."""
    program = Program(
        f"sqlite:///{tmp_path}/store.db",
        *SERVE,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        environment={"STANDFAST_TOKEN": "canary"},
    )
    said = program.process.communicate(timeout=PATIENCE)[0].decode()
    assert program.process.returncode == 4
    assert "STANDFAST_TOKEN is no token" in said
    assert "canary" not in said


def over(path: Path, *headers: bytes) -> bytes:
    """Call an action over a unix socket, without a token."""
    with closing(socket.socket(socket.AF_UNIX)) as line:
        line.connect(str(path))
        line.sendall(wire.post("noted", b"Content-Length: 2", b"Connection: close", *headers, body=b"{}"))
        heard = b""
        while more := line.recv(65_536):
            heard += more
    return heard


def test_a_unix_socket_is_its_owners_alone(tmp_path: Path) -> None:
    """So it needs no token; unless a proxy stands in between, which lets in others."""
    path = tmp_path / "desk.sock"
    with served(f"{DESK}:open_without_tools", "--uds", str(path)) as stage:
        assert stage.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert wire.statuses(over(path)) == [200]
        for header in (b"X-Forwarded-For: 203.0.113.9", b"Forwarded: for=203.0.113.9", b"Via: 1.1 proxy"):
            assert wire.statuses(over(path, header)) == [401]
        assert wire.statuses(over(path, b"Via: 1.1 proxy", f"Authorization: Bearer {TOKEN}".encode())) == [200]
        code, said = answer("sqlite://", *SERVE, "--uds", str(path))
        assert (code, "another server does" in said) == (1, True)
        stage.program.process.kill()
        stage.program.process.wait(PATIENCE)
        assert path.exists()
        with served(f"{DESK}:open_without_tools", "--uds", str(path)) as after:
            assert wire.statuses(over(path)) == [200]
            after.program.process.terminate()
            after.program.process.wait(PATIENCE)
        assert not path.exists()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """A file of that name is not taken away."""
    path = tmp_path / "letters.txt"
    path.write_text("dear Ada")
    code, said = answer(f"sqlite:///{tmp_path}/store.db", *SERVE, "--uds", str(path))
    assert (code, "it is no socket" in said, path.read_text()) == (1, True, "dear Ada")
    assert [each.name for each in tmp_path.iterdir()] == ["letters.txt"]
