"""A store of files in git, safe for the tasks of one process and for several processes at once.

Two layers protect it. Inside a process a key lets one task at a time work on a working copy. Between processes there
is no lock: each publishes its commits by a push, git refuses the one that comes second, and the loser starts over.

The branch ``main`` is the truth. The files of the working copy follow it with a detached HEAD, which says at any time
what they are based on, so a process that is killed anywhere leaves nothing that the next one could mistake for work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import standfast as sf
from standfast.exclusion import Exclusion
from standfast.exclusion.retry import Attempt, Backoff, attempt_under

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from standfast.exclusion import Hold

T = TypeVar("T")

OPERATION = sf.KeyFamily("gitstore-operation")

# Nobody's configuration, aliases or hooks may change what happens here.
_ISOLATED = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
_IDENTITY = ("-c", "user.name=gitstore", "-c", "user.email=gitstore@localhost", "-c", "gc.auto=0", *_NO_HOOKS)
_RECEIVER = f"git {' '.join(_NO_HOOKS)} receive-pack"  # git hands its -c options to no other repository


class GitError(Exception):
    """A git command failed. The message is what git said."""


class PushError(Exception):
    """Another process was faster: it published first, or it was at work on the working copy."""

    def __init__(self, message: str, work_directory: Path, cause: BaseException) -> None:
        super().__init__(message, work_directory, cause)
        self.message, self.work_directory, self.cause = message, work_directory, cause


@contextlib.contextmanager
def lost_race(message: str, work_directory: Path) -> Iterator[None]:
    """Take the failure of a git command as a sign that another process was faster."""
    try:
        yield
    except GitError as error:
        raise PushError(message, work_directory, error) from error


async def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return what it prints; if we are cancelled, so is git."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "git", *_IDENTITY, *arguments, cwd=folder, env={**inherited, **_ISOLATED}, stdout=pipe, stderr=pipe
    )
    try:
        printed, complaint = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise GitError(f"git {arguments[0]}: {complaint.decode().strip()}")
    return printed.decode()


@dataclass(frozen=True)
class Tree:
    """A folder whose files can be changed and committed."""

    path: Path

    async def commit(self, message: str) -> bool:
        """Commit everything that has changed; False if nothing has."""
        await git(self.path, "add", "--all")
        if not await git(self.path, "status", "--porcelain"):
            return False
        await git(self.path, "commit", "--quiet", "--message", message)
        return True

    async def push(self, target: str) -> None:
        """Publish the commits; whatever goes wrong with that is a lost race."""
        with lost_race("the push was refused", self.path):
            await git(self.path, "push", "--quiet", "--receive-pack", _RECEIVER, target, "HEAD:refs/heads/main")


@dataclass(frozen=True)
class GitStore:
    """Files under version control in one working copy."""

    working_copy: Path
    exclusion: Exclusion
    attempts: int = 5
    backoff: Backoff = field(default_factory=Backoff)

    def _hold(self) -> Hold:
        """Return the one key of everything that is done to this working copy."""
        return self.exclusion.hold(OPERATION(str(self.working_copy.resolve())))

    async def transaction(self, transform: Callable[[Tree], Awaitable[T]]) -> T:
        """Let ``transform`` change and commit files in a clone of its own, and publish its commits.

        When another process publishes first, ``transform`` is called again with a fresh clone, so it must not change
        anything outside that may not be changed twice.
        """

        async def attempt(_attempt: Attempt) -> T:
            async with self._clone() as clone:
                result = await transform(clone)
                await clone.push("origin")
            with contextlib.suppress(GitError):  # the files may lag behind; HEAD says so, and the next one catches up
                await self._follow_main()
            return result

        return await self._attempt(attempt)

    async def checkpoint(self, message: str) -> bool:
        """Commit and publish what has been changed in the working copy; False, and nothing done, if it is clean."""
        tree = Tree(self.working_copy)

        async def attempt(_attempt: Attempt) -> bool:
            with lost_race("the working copy is in use", tree.path):
                await self._follow_main()
                if not await tree.commit(message):
                    return False
            try:
                await tree.push(".")
            except PushError:
                await git(tree.path, "reset", "--quiet", "--soft", "HEAD~1")  # the changes stay, the commit goes
                raise
            return True

        return await self._attempt(attempt)

    async def checkpoint_session(self, work: Callable[[Tree], Awaitable[T]]) -> T:
        """Let ``work`` make several commits in the working copy itself, and publish them together.

        What was left there uncommitted is thrown away first, and so is everything if ``work`` fails.
        """
        tree = Tree(self.working_copy)

        async def attempt(_attempt: Attempt) -> T:
            await self._start_afresh()
            try:
                result = await work(tree)
                await tree.push(".")
            except BaseException:
                with contextlib.suppress(PushError):
                    await self._start_afresh()
                raise
            return result

        return await self._attempt(attempt)

    async def _attempt(self, attempt: Callable[[Attempt], Awaitable[T]]) -> T:
        return await attempt_under(
            self._hold(),
            attempt,
            retry_on=PushError,
            attempts=self.attempts,
            backoff=self.backoff,
            preflight=self._ensure_working_copy,
        )

    async def _ensure_working_copy(self) -> None:
        """Make the working copy if there is none, beside its place; of several processes the first one counts."""
        if (self.working_copy / ".git").exists():
            await self._leave_main()
            return
        self.working_copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.working_copy.parent, prefix=".gitstore-") as folder:
            fresh = Path(folder) / "fresh"
            fresh.mkdir()
            await git(fresh, "init", "--quiet", "--initial-branch", "main")
            await git(fresh, "commit", "--quiet", "--allow-empty", "--message", "begin")
            await git(fresh, "checkout", "--quiet", "--detach")
            with contextlib.suppress(OSError):  # another process was faster
                fresh.rename(self.working_copy)

    async def _leave_main(self) -> None:
        """Detach the files of a repository that somebody else made: git refuses to push to a branch in use."""
        head = self.working_copy / ".git" / "HEAD"
        if head.exists() and head.read_text().strip() == "ref: refs/heads/main":
            await git(self.working_copy, "checkout", "--quiet", "--detach")

    @contextlib.asynccontextmanager
    async def _clone(self) -> AsyncIterator[Tree]:
        with tempfile.TemporaryDirectory(prefix="gitstore-") as folder:
            clone = Path(folder) / "clone"
            await git(
                Path(folder),
                "clone",
                "--no-local",  # a local clone copies files, also half-written ones of a push that is under way
                "--quiet",
                "--branch",
                "main",
                str(self.working_copy.resolve()),
                str(clone),
            )
            yield Tree(clone)

    async def _follow_main(self) -> None:
        """Bring the files to what is published, and keep what is being edited."""
        await git(self.working_copy, "checkout", "--quiet", "--detach", "main")

    async def _start_afresh(self) -> None:
        """Bring the files to what is published, and throw away everything else."""
        with lost_race("the working copy is in use", self.working_copy):
            await git(self.working_copy, "checkout", "--quiet", "--force", "--detach", "main")
            await git(self.working_copy, "clean", "--quiet", "--force", "-d")


async def main() -> None:
    """Let several tasks write to one store."""
    exclusion = Exclusion()
    with tempfile.TemporaryDirectory() as folder:
        store = GitStore(Path(folder) / "notes", exclusion)

        async def add_line(number: int) -> int:
            async def transform(tree: Tree) -> int:
                log = tree.path / "log.txt"
                lines = log.read_text().splitlines() if log.exists() else []
                log.write_text("\n".join([*lines, f"line {number}"]) + "\n")
                await tree.commit(f"Add line {number}")
                return len(lines) + 1

            return await store.transaction(transform)

        print("lines in the log after each transaction:", await asyncio.gather(*map(add_line, range(3))))
        (store.working_copy / "draft.txt").write_text("unfinished\n")
        print("draft saved:", await store.checkpoint("Save the draft"))
        print("saved again, though nothing changed:", await store.checkpoint("Save the draft"))
        print((await git(store.working_copy, "log", "--format=%s", "main")).strip())
        print("idle again:", exclusion.inspect() == ())


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# lines in the log after each transaction: [1, 2, 3]
# draft saved: True
# saved again, though nothing changed: False
# Save the draft
# Add line 2
# Add line 1
# Add line 0
# begin
# idle again: True
