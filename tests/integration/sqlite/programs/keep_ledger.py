"""Commits for ever, and notes each acknowledged commit in a ledger outside the store: ``keep_ledger URL NAME LEDGER``.

Every commit writes an entry of its own and moves a counter that all writers share.
"""

from __future__ import annotations

import asyncio
import os
from itertools import count
from typing import TYPE_CHECKING

from standfast.stores import Decision, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores import Snapshot


def enter(name: str, number: int) -> Callable[[Snapshot], Decision[None]]:
    """Return a decision to write entry ``number`` and to move the shared counter."""
    entry, shared = key("entry", name, f"{number:08}"), key("shared")

    def decide(snapshot: Snapshot) -> Decision[None]:
        present = snapshot.get(shared)
        moved = 1 if present is None else int(present.value) + 1
        changes = (Put(entry, b"%d" % number), Put(shared, b"%d" % moved, expected=snapshot.version(shared)))
        return Decision(None, changes)

    return decide


async def main(url: str, name: str, ledger: str) -> None:
    """Commit and note, until somebody kills this process."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    store = await open_store(url)
    say("ready")
    for number in count():
        decided = await store.update((key("entry", name, f"{number:08}"), key("shared")), enter(name, number))
        os.write(descriptor, b"%d %d\n" % (number, decided.versions[key("shared")]))


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))
