"""The page about Temporal, DBOS and Celery: their own code is executed by the versions of them that the page names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests import services
from tests.docs.page import FENCE, dedented
from tests.services.commands import run
from tests.services.places import MissingError, locked

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "how-to" / "come-from-dbos-celery-temporal.md").read_text(encoding="utf-8")
PINS: Final = ROOT / "requirements" / "peers.txt"
HOME: Final = ROOT / ".cache" / "envs" / "peers"
PEERS: Final = {"Temporal": "temporalio", "DBOS": "dbos", "Celery": "celery"}
NAMES: Final = {"Temporal": r"\bworkflow\.([a-z]\w+)", "DBOS": r"\bDBOS\.([a-z]\w+)"}
"""What the tables translate, and the program of the peer looks for."""


def section(peer: str) -> str:
    """Return what the page says about a peer."""
    _, _, rest = PAGE.partition(f"\n## From {peer}\n")
    return rest.partition("\n## ")[0]


def interpreter() -> Path:
    """Return one that has the peers, as they are pinned; made on first use."""
    python, mark, pins = HOME / "bin" / "python", HOME / ".pins", PINS.read_text(encoding="utf-8") + sys.version
    with locked(HOME.with_suffix(".lock")):
        if not mark.exists() or mark.read_text(encoding="utf-8") != pins:
            uv = str(ROOT / "tools" / "uv")
            run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(HOME), cwd=ROOT)
            install = ("pip", "install", "--quiet", "--python", str(python), "--require-hashes")
            run(uv, *install, "--requirement", str(PINS), cwd=ROOT)
            mark.write_text(pins, encoding="utf-8")
    return python


@pytest.mark.parametrize("package", PEERS.values())
def test_the_page_names_the_version_that_is_pinned(package: str) -> None:
    """``make lock`` moves the pins to the newest versions, and then the page has to follow."""
    pinned = re.search(rf"(?m)^{package}==([\d.]+)", PINS.read_text(encoding="utf-8"))
    assert pinned is not None
    assert re.search(rf"\*\*{package} {re.escape(pinned[1])}\*\*", PAGE, re.IGNORECASE)


@pytest.mark.parametrize("peer", PEERS)
def test_the_order_in_the_words_of_a_peer_is_fulfilled_by_it(peer: str, tmp_path: Path) -> None:
    """The code of the page is a program; what two days are there is a second here."""
    code = dedented(next(FENCE.finditer(section(peer))))
    (tmp_path / "order.py").write_text(code.replace("172_800", "1"), encoding="utf-8")
    program = ROOT / "tests" / "docs" / "peers" / f"{peer.lower()}_order.py"
    present = re.sub(r"\(before: [^)]*\)+", "", section(peer))
    names = sorted(set(re.findall(NAMES[peer], present))) if peer in NAMES else []
    broker = {"CELERY_BROKER_URL": "memory://", "CELERY_RESULT_BACKEND": "cache+memory://"}
    try:
        python = interpreter()
    except MissingError as problem:
        services.require(None, f"{peer} ({problem})")
        return
    done = subprocess.run(
        [python, program, *names],
        cwd=tmp_path,
        env={**os.environ, **broker, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=45,
    )
    assert (done.stdout, done.returncode) == ("receipt for tea\n", 0), done.stderr
