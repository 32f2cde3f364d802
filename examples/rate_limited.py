"""Two event loops in two threads, as two processes would, share one limit: nobody passes faster than it allows."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import standfast as sf

URL = "sqlite:///rates.db"
CAPACITY, INTERVAL = 2, 0.1


async def send(requests: int) -> int:
    """Send requests as fast as the limit lets them; return how many went."""
    async with sf.open(URL) as space:
        vendor = space.rate_limiter("vendor", capacity=CAPACITY, interval=INTERVAL)
        for _ in range(requests):
            async with vendor.limited(timeout="30s"):
                pass  # call the vendor here
    return requests


def main() -> None:
    """Let two threads send three requests each. Two pass at once, and the four others are 100 ms apart."""
    started = time.monotonic()
    with ThreadPoolExecutor() as threads:
        sent = sum(threads.map(lambda requests: asyncio.run(send(requests)), (3, 3)))
    allowed = CAPACITY + (time.monotonic() - started) / INTERVAL
    print(f"{sent} requests passed, no faster than allowed: {sent <= allowed}")


main()

# Output:
# 6 requests passed, no faster than allowed: True
