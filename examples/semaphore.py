"""Two event loops in two threads, as two processes would, call a vendor that takes three requests at a time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import standfast as sf

URL = "sqlite:///vendor.db"
PERMITS = 3


class Vendor:
    """Counts how many requests it has at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self.most = self.served = 0

    async def serve(self) -> None:
        """Take a few milliseconds over a request."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        await asyncio.sleep(0.005)
        with self._lock:
            self._now -= 1
            self.served += 1


async def call(vendor: Vendor, requests: int) -> None:
    """Send requests all at once; those that find no permit stand in line."""

    async def one(space: sf.Space) -> None:
        async with space.semaphore("vendor", permits=PERMITS).hold(timeout="30s"):
            await vendor.serve()

    async with sf.open(URL) as space:
        await asyncio.gather(*(one(space) for _ in range(requests)))


def main() -> None:
    """Let two threads send ten requests each."""
    vendor = Vendor()
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda requests: asyncio.run(call(vendor, requests)), (10, 10)))
    print(f"{vendor.served} requests, never more than {PERMITS} at a time: {vendor.most <= PERMITS}")


main()

# Output:
# 20 requests, never more than 3 at a time: True
