"""A process that pushes commits to a git store: ``git_pusher.py WORKING_COPY NAME TIMES``.

It prints ``ready`` when its first clone is made, and pushes after it has read a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from examples.gitstore import GitStore, Tree
from standfast.exclusion import Exclusion


async def main(working_copy: Path, name: str, times: int) -> None:
    """Append lines to a log, one commit each, and report how often that was tried."""
    store = GitStore(working_copy, Exclusion(), attempts=100)
    transforms = 0
    for number in range(times):

        async def append(tree: Tree, line: str = f"{name} {number}") -> None:
            nonlocal transforms
            transforms += 1
            with (tree.path / "log").open("a") as log:
                log.write(f"{line}\n")
            await tree.commit(line)
            if transforms == 1:
                print("ready", flush=True)
                sys.stdin.readline()

        await store.transaction(append)
    print(json.dumps({"transforms": transforms}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
