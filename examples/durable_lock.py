"""Three processes add to one number in a plain file, one at a time; a fourth is killed while it holds the lock."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import standfast as sf

URL = "sqlite:///locks.db"
TOTAL = Path("total.txt")


def total() -> int:
    """Read the number."""
    return int(TOTAL.read_text()) if TOTAL.exists() else 0


async def add(times: int) -> None:
    """Read, let others run, and write: without a lock most of it would be lost."""
    async with sf.open(URL) as space:
        for _ in range(times):
            async with space.mutex("total").hold(timeout="30s"):
                seen = total()
                await asyncio.sleep(0)
                await asyncio.to_thread(TOTAL.write_text, str(seen + 1))


async def hang() -> None:
    """Take the lock, say so, and never give it back."""
    async with sf.open(URL) as space, space.mutex("total").hold() as hold:
        print(hold.fence, flush=True)
        await asyncio.Event().wait()


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """Start this file once more, to do what the arguments say."""
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE)


async def main() -> None:
    """Kill a holder while three others wait, and see them through."""
    holder = await start("hang")
    assert holder.stdout is not None
    fence = int(await holder.stdout.readline())
    workers = [await start("add", "20") for _ in range(3)]
    holder.kill()
    print("exit codes of the others:", [await worker.wait() for worker in workers])
    print("they counted to", total())
    async with sf.open(URL) as space, space.mutex("total").hold() as hold:
        print("with a higher fence:", hold.fence > fence)
    await holder.wait()


match sys.argv[1:]:
    case ["add", times]:
        asyncio.run(add(int(times)))
    case ["hang"]:
        asyncio.run(hang())
    case _:
        asyncio.run(main())

# Output:
# exit codes of the others: [0, 0, 0]
# they counted to 60
# with a higher fence: True
