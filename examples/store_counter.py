"""Three event loops in three threads count up one record: updates from everywhere are folded, and none is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import standfast as sf
from standfast.stores import Decision, Put

if TYPE_CHECKING:
    from standfast.stores import Snapshot

URL = "sqlite:///counter.db"


async def count(times: int) -> int:
    """Count up, all at once; return the highest number that this loop was given."""
    async with sf.open(URL) as space:
        counter = space.key("counter", "visits")

        def one_more(seen: Snapshot) -> Decision[int]:
            record = seen.get(counter)
            number = int(record.value) + 1 if record else 1
            return Decision(number, (Put(counter, str(number).encode(), seen.version(counter)),))

        answers = await asyncio.gather(*(space.update([counter], one_more) for _ in range(times)))
        return max(answer.answer for answer in answers)


def main() -> None:
    """Let three threads count, each with an event loop and a handle of its own."""
    with ThreadPoolExecutor() as threads:
        highest = max(threads.map(lambda _: asyncio.run(count(200)), range(3)))
    print(f"{highest} updates, none lost")


main()

# Output:
# 600 updates, none lost
