"""Three levels of access to a graph: pulls share it, observers share it, and exclusive work has it alone."""

from __future__ import annotations

import asyncio

import standfast as sf

GRAPH = sf.KeyFamily("graph", modes=("pull", "observe"), alone=("exclusive",))
exclusion = sf.Exclusion()


async def work(name: str, mode: str) -> None:
    """Be inside for a moment."""
    async with exclusion.hold(GRAPH(), mode=mode):
        inside = [holder.task for holder in exclusion.inspect(GRAPH()).holders]
        print(f"{name} enters; inside: {', '.join(inside)}")
        await asyncio.sleep(0.01)


async def main() -> None:
    """Let them come one after another; nobody passes a task that asked earlier."""
    comers = {
        "pull 1": "pull",
        "pull 2": "pull",
        "observe 1": "observe",
        "pull 3": "pull",
        "migrate": "exclusive",
        "migrate again": "exclusive",
    }
    async with asyncio.TaskGroup() as tasks:
        for name, mode in comers.items():
            tasks.create_task(work(name, mode), name=name)


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# pull 1 enters; inside: pull 1
# pull 2 enters; inside: pull 1, pull 2
# observe 1 enters; inside: observe 1
# pull 3 enters; inside: pull 3
# migrate enters; inside: migrate
# migrate again enters; inside: migrate again
