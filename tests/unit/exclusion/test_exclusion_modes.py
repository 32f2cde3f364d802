"""Modes: shared within one, exclusive between two, alone where declared so."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from standfast.errors import LockOrderError, WouldWaitError
from standfast.exclusion import Exclusion
from standfast.exclusion.table import share
from standfast.keys import KeyFamily
from tests.unit.exclusion.scene import MODES, PLAIN, Overlaps, Scene, ended, ticks

GATE = KeyFamily("test-gate")
ACTIVITY = KeyFamily("test-activity", modes=("pull", "observe"), alone=("exclusive",), after=(GATE,))
NODE = KeyFamily("test-node", after=(ACTIVITY,))

MATRIX = {
    ("exclusive", "exclusive"): False,
    ("exclusive", "pull"): False,
    ("exclusive", "observe"): False,
    ("pull", "exclusive"): False,
    ("pull", "pull"): True,
    ("pull", "observe"): False,
    ("observe", "exclusive"): False,
    ("observe", "pull"): False,
    ("observe", "observe"): True,
}


@pytest.mark.parametrize(("held", "wanted"), MATRIX)
async def test_the_matrix_of_modes(held: str, wanted: str) -> None:
    """Whether a key held in one mode can at the same time be held in another, cell by cell."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("first", held)
        await scene.enter("second", wanted)
        assert scene.inside == (["first", "second"] if MATRIX[held, wanted] else ["first"])
        await scene.leave("first")
        assert scene.inside == ["second"]


@pytest.mark.parametrize(("held", "wanted"), MATRIX)
async def test_try_hold_follows_the_matrix(held: str, wanted: str) -> None:
    """What can be shared can be had at once; what cannot is refused."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("first", held)
        try:
            async with scene.exclusion.try_hold(scene.key, mode=wanted):
                let_in = True
        except WouldWaitError:
            let_in = False
        assert let_in == MATRIX[held, wanted]


def test_the_algebra_is_the_matrix() -> None:
    """The pure function says the same, and a family without modes shares nothing."""
    modes = ("exclusive", "pull", "observe")
    assert {(held, wanted): share(MODES, held, wanted) for held, wanted in product(modes, modes)} == MATRIX
    assert not share(PLAIN, None, None)


async def test_nobody_passes_a_waiter_of_another_mode() -> None:
    """A pull that comes after a waiting observe waits behind it, though a pull is under way."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("pull 1", "pull")
        await scene.enter("observe", "observe")
        await scene.enter("pull 2", "pull")
        assert (scene.inside, scene.line) == (["pull 1"], ["observe", "pull 2"])
        await scene.leave("pull 1")
        await scene.leave("observe")
    assert scene.log == ["pull 1", "observe", "pull 2"]


async def test_try_hold_passes_nobody_either() -> None:
    """While somebody waits, even a mode that the holders share is not to be had."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("pull 1", "pull")
        await scene.enter("observe", "observe")
        with pytest.raises(WouldWaitError):
            await scene.exclusion.try_hold(scene.key, mode="pull").__aenter__()


async def test_waiters_of_one_mode_enter_together() -> None:
    """All that stand next to each other at the head go in at once; the first of another mode ends the batch."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("exclusive", "exclusive")
        for name in ("pull 1", "pull 2", "pull 3", "observe", "pull 4"):
            await scene.enter(name, name.split()[0])
        await scene.leave("exclusive")
        assert (scene.inside, scene.line) == (["pull 1", "pull 2", "pull 3"], ["observe", "pull 4"])


async def test_the_last_of_a_batch_hands_over() -> None:
    """The next mode enters when all of the batch have left, whoever is last."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("pull 1", "pull")
        await scene.enter("pull 2", "pull")
        await scene.enter("exclusive", "exclusive")
        await scene.leave("pull 1")
        assert scene.inside == ["pull 2"]
        await scene.leave("pull 2")
        assert scene.inside == ["exclusive"]


async def test_those_alone_enter_one_by_one() -> None:
    """A mode that stands alone excludes its own kind too, without another lock in front of it."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        for name in "123":
            await scene.enter(name, "exclusive")
        assert scene.inside == ["1"]
        await scene.leave("1")
        assert scene.inside == ["2"]


async def test_followers_enter_when_a_cancelled_waiter_no_longer_blocks_them() -> None:
    """A pull behind a waiting observe enters at once when the observe gives up, because a pull is under way."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("pull 1", "pull")
        await scene.enter("observe", "observe")
        await scene.enter("pull 2", "pull")
        await scene.enter("pull 3", "pull")
        scene.tasks["observe"].cancel()
        await ticks()
        assert scene.inside == ["pull 1", "pull 2", "pull 3"]


async def test_followers_enter_when_a_waiter_runs_out_of_time() -> None:
    """A timeout at the head of the line lets in whom it kept out."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("pull 1", "pull")
        await scene.enter("observe", "observe", timeout=0.001)
        pull = await scene.enter("pull 2", "pull")
        await asyncio.wait([scene.tasks["observe"]])
        await ticks()
        assert not pull.done()
        assert scene.inside == ["pull 1", "pull 2"]


async def test_a_batch_member_cancelled_in_the_hand_over_does_not_hold_up_the_others() -> None:
    """Of two that were let in together one is cancelled before it runs; the other is inside alone."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("exclusive", "exclusive")
        for name in ("pull 1", "pull 2"):
            await scene.enter(name, "pull")
        await scene.enter("observe", "observe")
        scene.afterwards["exclusive"] = scene.tasks["pull 1"].cancel
        await scene.leave("exclusive")
        assert (scene.inside, scene.line) == (["pull 2"], ["observe"])


async def test_a_failing_holder_of_a_batch_frees_only_its_own_part() -> None:
    """An exception in one of several that share a key leaves the others inside."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        await scene.enter("pull 1", "pull")
        failing = await scene.enter("pull 2", "pull")
        failing.cancel()
        await ticks()
        assert scene.inside == ["pull 1"]


# --- three levels of access: gate, activity, node -----------------------------------------------------------------


async def test_exclusive_work_goes_through_the_gate_and_blocks_all_activity() -> None:
    """Gate first, then the activity key: exclusive operations are serialised and nothing else runs meanwhile."""
    exclusion, overlaps = Exclusion(), Overlaps()

    async def exclusive(name: str) -> None:
        async with exclusion.hold(GATE()), exclusion.hold(ACTIVITY(), mode="exclusive"):
            assert overlaps.inside.total() == 0
            await overlaps.visit(name)

    async def active(name: str, mode: str) -> None:
        async with exclusion.hold(ACTIVITY(), mode=mode):
            assert not overlaps.inside["exclusive"]
            await overlaps.visit(name)

    calls = [exclusive("exclusive"), active("p", "pull"), active("o", "observe"), exclusive("exclusive")]
    await asyncio.gather(*calls, active("p", "pull"), active("p", "pull"))
    assert overlaps.most == 2  # the two pulls at the end


async def test_the_gate_cannot_be_taken_by_active_work() -> None:
    """Pull and observe never take the gate: the declared order stops a task that tries."""
    exclusion = Exclusion()
    async with exclusion.hold(ACTIVITY(), mode="pull"):
        with pytest.raises(LockOrderError, match=r"test-gate\(\) must be taken before test-activity\(\)"):
            await exclusion.hold(GATE()).__aenter__()


async def test_pulls_of_one_node_are_serialised_and_those_of_different_nodes_overlap() -> None:
    """Under the shared pull mode, each node has a lock of its own."""
    exclusion, overlaps, per_node = Exclusion(), Overlaps(), {"x": Overlaps(), "y": Overlaps()}

    async def pull(node: str) -> None:
        async with exclusion.hold(ACTIVITY(), mode="pull"), exclusion.hold(NODE(node)):
            await asyncio.gather(overlaps.visit(node), per_node[node].visit(node))

    await asyncio.gather(pull("x"), pull("y"), pull("x"))
    assert (overlaps.most, per_node["x"].most, per_node["y"].most) == (2, 1, 1)
