"""A wrong URL says what to type."""

from __future__ import annotations

import subprocess
import sys

import pytest

from standfast.errors import InvalidUrlError
from standfast.stores.url import open_store


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("standfast.db", "write 'sqlite:///standfast.db'"),
        ("sqlit:///x.db", "did you mean 'sqlite:///standfast.db'"),
        ("SQLITE:///x.db", "did you mean 'sqlite:///standfast.db'"),
        ("mssql://host/db", "ADR 0067"),
        ("sqlserver://host/db", "designed and not shipped"),
        ("nosuch://x", "write one of 'sqlite:///standfast.db', 'memory://'"),
        ("sqlite://x.db", "three slashes are needed: 'sqlite:///x.db'"),
        ("sqlite:/srv/x.db", "three slashes are needed: 'sqlite:////srv/x.db'"),
        ("sqlite:///x.db ", "begins or ends with a space"),
        (" postgresql://host/x", "begins or ends with a space"),
        ("sqlite:///", "name a file"),
        ("sqlite:///folder/", "name a file"),
        ("sqlite:///:memory:", "for memory write 'memory://'"),
        ("sqlite:///a#b.db", "written %23"),
        (
            "sqlite:///x.db?colour=red",
            "there are busy, network, others, commits, hints, folder",
        ),
        ("sqlite:///x.db?busy=soon", "busy: "),
        ("sqlite:///x.db?network=maybe", "network is one of refuse, allow, not 'maybe'"),
        ("sqlite:///%FF.db", "not text in UTF-8"),
        ("sqlite:///\udcff.db", "not text in UTF-8"),
        ("memory://name/path", "memory://name for one shared"),
        ("memory://[", "cannot open"),
    ],
)
async def test_a_wrong_url_says_what_to_type(url: str, advice: str) -> None:
    """Each mistake has its own advice, and nothing is created."""
    with pytest.raises(InvalidUrlError) as caught:
        await open_store(url)

    assert advice in str(caught.value)


async def test_a_url_that_is_not_text_is_refused() -> None:
    """A path object is not a URL; the message shows one."""
    with pytest.raises(InvalidUrlError, match="sqlite:///standfast"):
        await open_store(7)  # type: ignore[arg-type] # the mistake under test


async def test_memory_is_shared_by_name_and_private_without() -> None:
    """``memory://name`` is one store for the process; ``memory://`` is a new one each time."""
    one, same, other = (
        await open_store("memory://shared"),
        await open_store("memory://shared"),
        await open_store("memory://"),
    )

    assert one.backend.name == same.backend.name == "memory://shared"
    assert other.backend.name == "memory://"
    for store in (one, same, other):
        await store.aclose()


def test_a_missing_driver_says_what_to_install() -> None:
    """Without apsw, opening an SQLite store names the command to type; memory needs no driver."""
    program = (
        "import asyncio, sys; sys.modules['apsw'] = None\n"
        "from standfast.stores.url import open_store\n"
        "async def main():\n"
        "    await (await open_store('memory://')).aclose()\n"
        "    try: await open_store('sqlite:///x.db')\n"
        "    except ImportError as problem: print(problem)\n"
        "asyncio.run(main())"
    )

    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert 'pip install "apsw"' in shown
