"""The two layers of exclusion, shown by a store of files in git: tasks wait for each other, processes retry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.gitstore import GitError, GitStore, PushError, Tree, git
from standfast.exclusion import Exclusion
from standfast.exclusion.retry import Backoff
from tests.fork_server import ForkedPopen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT = Path(__file__).resolve().parents[2]
PUSHER = Path(__file__).with_name("git_pusher.py")
AT_ONCE = Backoff(0)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary trees are made, so that a test can see that none is left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path, scratch: Path) -> GitStore:
    """A store in a working copy that does not exist yet."""
    assert scratch.exists()
    return GitStore(tmp_path / "store", Exclusion(), backoff=AT_ONCE)


def write(name: str, text: str = "x") -> Callable[[Tree], Awaitable[str]]:
    """Return a transform that commits one file."""

    async def transform(tree: Tree) -> str:
        (tree.path / name).write_text(text)
        await tree.commit(f"Write {name}")
        return name

    return transform


async def subjects(store: GitStore) -> list[str]:
    """Return the subjects of all published commits, oldest first."""
    return (await git(store.working_copy, "log", "--reverse", "--format=%s", "main")).splitlines()


async def rival(store: GitStore, name: str) -> None:
    """Publish a commit as another process would: without the key of this one."""
    await GitStore(store.working_copy, Exclusion(), backoff=AT_ONCE).transaction(write(name))


async def repository(store: GitStore) -> None:
    """Make the working copy as anybody would, with the branch checked out."""
    store.working_copy.mkdir()
    await git(store.working_copy, "init", "--quiet", "--initial-branch", "main")
    (store.working_copy / "mine").write_text("committed")
    await Tree(store.working_copy).commit("Begin by hand")


# --- transactions -------------------------------------------------------------------------------------------------


async def test_a_transaction_publishes_what_the_transform_commits(store: GitStore, scratch: Path) -> None:
    """Its result is returned, its files are in the working copy, and its clone is gone."""
    assert await store.transaction(write("a")) == "a"
    assert await subjects(store) == ["begin", "Write a"]
    assert (store.working_copy / "a").read_text() == "x"
    assert list(scratch.iterdir()) == []


async def test_transactions_of_one_process_never_lose_races(store: GitStore) -> None:
    """The key serialises them, so that one attempt is enough for each."""
    patient = GitStore(store.working_copy, store.exclusion, attempts=1)
    await asyncio.gather(*(patient.transaction(write(name)) for name in "abcd"))
    assert await subjects(store) == ["begin", *(f"Write {name}" for name in "abcd")]


async def test_a_lost_push_starts_over_from_what_is_published(store: GitStore, scratch: Path) -> None:
    """The second attempt sees the rival's commit in a fresh clone."""
    seen: list[list[str]] = []

    async def transform(tree: Tree) -> None:
        seen.append(sorted(path.name for path in tree.path.iterdir() if path.name != ".git"))
        if len(seen) == 1:
            await rival(store, "rival")
        await write("mine")(tree)

    await store.transaction(transform)
    assert seen == [[], ["rival"]]
    assert await subjects(store) == ["begin", "Write rival", "Write mine"]
    assert list(scratch.iterdir()) == []


async def test_a_race_that_is_always_lost_ends_with_the_last_refusal(store: GitStore, scratch: Path) -> None:
    """The error has the message, the folder it was pushed from, and what git said."""
    tried: list[Path] = []

    async def transform(tree: Tree) -> None:
        await rival(store, f"rival-{len(tried)}")
        tried.append(tree.path)
        await write("mine")(tree)

    with pytest.raises(PushError) as caught:
        await store.transaction(transform)
    assert len(tried) == 5
    assert caught.value.work_directory == tried[-1]
    assert isinstance(caught.value.cause, GitError)
    assert caught.value.message == "the push was refused"
    assert list(scratch.iterdir()) == []


async def test_any_other_failure_ends_the_transaction_at_once(store: GitStore, scratch: Path) -> None:
    """Nothing is published, and the clone is gone."""

    async def transform(tree: Tree) -> None:
        await write("half")(tree)
        raise LookupError

    with pytest.raises(LookupError):
        await store.transaction(transform)
    assert await subjects(store) == ["begin"]
    assert list(scratch.iterdir()) == []
    assert store.exclusion.inspect() == ()


async def test_a_cancelled_transaction_leaves_nothing_behind(store: GitStore, scratch: Path) -> None:
    """Its clone is gone, its key is free, and nothing is published."""
    started = asyncio.Event()

    async def transform(tree: Tree) -> None:
        await write("half")(tree)
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(store.transaction(transform))
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (await subjects(store), list(scratch.iterdir())) == (["begin"], [])
    assert store.exclusion.inspect() == ()


async def test_stores_in_different_places_work_at_once(store: GitStore, tmp_path: Path) -> None:
    """The key is that of the working copy: one transaction can go on while another is under way."""
    other = GitStore(tmp_path / "other", store.exclusion, backoff=AT_ONCE)

    async def transform(tree: Tree) -> None:
        await asyncio.create_task(other.transaction(write("inner")))
        await write("outer")(tree)

    await store.transaction(transform)
    assert await subjects(other) == ["begin", "Write inner"]


# --- checkpoints --------------------------------------------------------------------------------------------------


async def test_a_checkpoint_publishes_what_was_edited(store: GitStore) -> None:
    """New, changed and removed files all become part of one commit."""
    await store.transaction(write("old"))
    (store.working_copy / "old").unlink()
    (store.working_copy / "new").write_text("y")
    assert await store.checkpoint("Save")
    assert (await git(store.working_copy, "ls-tree", "--name-only", "main")).split() == ["new"]


async def test_a_checkpoint_of_a_clean_working_copy_does_nothing(store: GitStore) -> None:
    """No commit without a change."""
    assert not await store.checkpoint("Save")
    assert await subjects(store) == ["begin"]


async def test_checkpoints_of_one_working_copy_are_serialised(store: GitStore) -> None:
    """Of several at once the first takes everything, and the others find it clean."""
    await store.transaction(write("a"))
    (store.working_copy / "a").write_text("changed")
    answers = await asyncio.gather(*(store.checkpoint("Save") for _ in range(3)))
    assert answers == [True, False, False]


async def test_a_checkpoint_goes_on_top_of_what_others_published(store: GitStore) -> None:
    """The files are edited while another process publishes: both changes are kept."""
    await store.transaction(write("a"))
    (store.working_copy / "mine").write_text("mine")
    await rival(store, "theirs")
    assert await store.checkpoint("Save")
    assert await subjects(store) == ["begin", "Write a", "Write theirs", "Save"]
    assert (await git(store.working_copy, "ls-tree", "--name-only", "main")).split() == ["a", "mine", "theirs"]


async def test_a_process_that_died_after_its_push_leaves_no_false_work(store: GitStore, scratch: Path) -> None:
    """The files lag behind what is published; a checkpoint must not take that for a change."""
    await store.transaction(write("a"))
    clone = scratch / "clone"
    await git(scratch, "clone", "--quiet", "--branch", "main", str(store.working_copy), str(clone))
    await write("b")(Tree(clone))
    await Tree(clone).push("origin")  # and then, nothing more
    assert not (store.working_copy / "b").exists()
    assert not await store.checkpoint("Save")
    assert (store.working_copy / "b").exists()


async def test_a_session_publishes_several_commits_at_once(store: GitStore) -> None:
    """What was left uncommitted before it is thrown away."""
    await store.transaction(write("a"))
    (store.working_copy / "rubbish").write_text("left by a crash")

    async def work(tree: Tree) -> int:
        await write("b")(tree)
        await write("c")(tree)
        return len(list(tree.path.glob("?")))

    assert await store.checkpoint_session(work) == 3
    assert await subjects(store) == ["begin", "Write a", "Write b", "Write c"]
    assert not (store.working_copy / "rubbish").exists()


async def test_a_session_that_fails_publishes_nothing(store: GitStore) -> None:
    """Its commits and its files are gone."""

    async def work(tree: Tree) -> None:
        await write("half")(tree)
        raise LookupError

    with pytest.raises(LookupError):
        await store.checkpoint_session(work)
    assert await subjects(store) == ["begin"]
    assert not (store.working_copy / "half").exists()


async def test_a_repository_that_was_there_before_can_be_used(store: GitStore) -> None:
    """What is being edited in it stays."""
    await repository(store)
    (store.working_copy / "mine").write_text("being edited")
    await store.transaction(write("a"))
    assert await subjects(store) == ["Begin by hand", "Write a"]
    assert (store.working_copy / "mine").read_text() == "being edited"


async def test_hooks_of_the_repository_do_not_run(store: GitStore, tmp_path: Path) -> None:
    """Neither where commits are made, nor where they are received."""
    await repository(store)
    for name in ("pre-commit", "pre-push", "pre-receive", "update", "post-checkout"):
        hook = store.working_copy / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran-{name}'\nexit 1\n")
        hook.chmod(0o700)
    await store.transaction(write("a"))
    (store.working_copy / "draft").write_text("x")
    assert await store.checkpoint("Save the draft")
    assert list(tmp_path.glob("ran-*")) == []


async def test_git_is_kept_away_from_the_users_configuration(
    store: GitStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signing, hooks and an inherited repository would break every command."""
    (tmp_path / ".gitconfig").write_text(
        "[commit]\n gpgsign = true\n[core]\n hooksPath = /nowhere\n[user]\n name = me\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    await store.transaction(write("a"))
    assert (await git(store.working_copy, "log", "-1", "--format=%an", "main")).strip() == "gitstore"


# --- two real processes -------------------------------------------------------------------------------------------


def start_pusher(working_copy: Path, name: str, times: int, scratch: Path) -> subprocess.Popen[str]:
    """Start a process that pushes ``times`` commits; it tells when it has a clone, and waits to be told to push."""
    command = [sys.executable, "-W", "error", str(PUSHER), str(working_copy), name, str(times)]
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    pipe = subprocess.PIPE
    return ForkedPopen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def collide(working_copy: Path, times: int, scratch: Path) -> list[dict[str, int]]:
    """Let two processes, p and q, push at the same moment from the same state; return what they report."""
    with contextlib.ExitStack() as stack:
        pushers = [stack.enter_context(start_pusher(working_copy, name, times, scratch)) for name in ("p", "q")]
        for pusher in pushers:
            stack.callback(pusher.kill)
            assert pusher.stdout is not None
            assert pusher.stdout.readline() == "ready\n"
        return [json.loads(answer) for answer in answers_of(pushers)]


def answers_of(pushers: list[subprocess.Popen[str]]) -> list[str]:
    """Tell all of them to go on before waiting for any."""
    for pusher in pushers:
        assert pusher.stdin is not None
        pusher.stdin.write("go\n")
        pusher.stdin.flush()
    return [pusher.communicate(timeout=50)[0] for pusher in pushers]


async def test_two_processes_that_push_at_once_both_succeed(store: GitStore, scratch: Path) -> None:
    """Both clones are made before either pushes: exactly one push is lost, and made good."""
    await store.transaction(write("a"))
    reports = collide(store.working_copy, 1, scratch)
    assert sorted(report["transforms"] for report in reports) == [1, 2]
    assert sorted((await subjects(store))[2:]) == ["p 0", "q 0"]
    assert list(scratch.iterdir()) == []


async def test_two_processes_that_push_all_the_time_lose_no_commit(store: GitStore, scratch: Path) -> None:
    """Every commit of both is there in the end, each once, and each process's own in order."""
    times = 6
    await store.transaction(write("a"))
    collide(store.working_copy, times, scratch)
    published = (await subjects(store))[2:]
    for name in ("p", "q"):
        assert [subject for subject in published if subject.startswith(name)] == [f"{name} {n}" for n in range(times)]
    lines = (await git(store.working_copy, "show", "main:log")).splitlines()
    assert sorted(lines) == sorted(published)
    assert list(scratch.iterdir()) == []
