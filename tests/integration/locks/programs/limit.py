"""Stand in the line of a rate limiter: ``limit <url>``; says when it has passed."""

from __future__ import annotations

import asyncio
import sys

import standfast as sf


async def main(url: str) -> None:
    """Wait for one token."""
    async with sf.open(url) as space:
        await space.rate_limiter("mails", interval="10ms").acquire()
        print("passed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
