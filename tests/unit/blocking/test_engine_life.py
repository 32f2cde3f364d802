"""The life of a blocking engine: opened when it is used, its runs handed back when it is closed, refused in a loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast import blocking
from standfast.blocking._portal import BackgroundCall, background
from standfast.errors import (
    DeclarationError,
    EngineNotOpenError,
    InvalidArgumentError,
    RunCancelledError,
    StoreClosedError,
    UnknownWorkflowError,
    UsageError,
    WorkflowTypeNotRegisteredForRecoveryError,
)
from tests.unit.blocking.engine_scene import (
    BEGAN,
    LET_GO,
    WORKFLOWS,
    doubles,
    engine,
    is_slow,
    sums,
    until_it_waits,
    until_they_wait,
    waits,
)
from tests.unit.blocking.scene import PATIENCE, beside, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address that several engines can share."""
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path / 'a.db'}"


@pytest.fixture(autouse=True)
def slow_steps() -> Iterator[None]:
    """Steps take their time until they are let go, at the end of the test at the latest."""
    BEGAN.clear()
    LET_GO.clear()
    yield
    LET_GO.set()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """Whatever a test does, no engine and no space is left on the loop."""
    before = set(background().engines), set(background().spaces)
    yield
    assert (background().engines, background().spaces) == before


# --- opening ---------------------------------------------------------------------------------------------------------


def test_it_opens_when_it_is_first_used() -> None:
    """One that is made where a module is loaded costs nothing until then; threads that race open it once."""
    ours = engine("memory://")
    assert not background().engines
    runs = [beside(lambda: ours.start(doubles, 1, id="one")) for _ in range(8)]

    assert sum(run.result(PATIENCE).is_new for run in runs) == 1
    assert len(background().engines) == 1
    ours.close()


def test_opening_what_is_open_is_refused() -> None:
    """Leaving the inner block would close it for the others."""
    with engine("memory://") as ours, pytest.raises(DeclarationError, match="open already"):
        ours.open()


def test_a_closed_engine_says_so_and_can_be_opened_again(url: str) -> None:
    """It does not come back by itself because somebody still uses it."""
    ours = engine(url)
    run = ours.start(doubles, 2)
    run.result(timeout=PATIENCE)
    ours.close()
    ours.close()
    with pytest.raises(EngineNotOpenError, match=r"engine\.open\(\)"):
        run.info()

    with ours:
        assert run.result(timeout=PATIENCE) == 4


def test_opening_says_whether_to_drive() -> None:
    """One declaration serves a web process and a worker; what was said stays."""
    ours = engine("memory://")
    ours.open(drive=False)
    assert ours.start(doubles, 1).info().status == "pending"
    ours.close()
    with ours:
        assert ours.start(doubles, 1).info().status == "pending"


def test_mistakes_are_found_when_it_is_made() -> None:
    """Not when the first request comes."""
    with pytest.raises(DeclarationError, match="no workflow"):
        blocking.Engine("memory://", workflows=[len])  # type: ignore[list-item] # the mistake
    with pytest.raises(InvalidArgumentError):
        blocking.Engine("memory://", worker=sf.admin.WorkerLimits(linger="soon"))
    with pytest.raises(UnknownWorkflowError):
        blocking.Engine("memory://", schedules=[sf.Schedule(doubles, 1, id="s", every=60)])


def test_an_opening_that_fails_leaves_nothing_open(url: str) -> None:
    """And can be tried again, when what was missing is there."""
    with engine(url, drive=False) as ours:
        ours.start(doubles, 1, id="left")
        other = blocking.Engine(url, recover=True)
        for attempt in (other.open, other.list, other.__enter__):
            with pytest.raises(WorkflowTypeNotRegisteredForRecoveryError):
                attempt()
        other.register(*WORKFLOWS)
        assert other.result("left", timeout=PATIENCE) == 2
        other.close()


def test_workflows_are_added(url: str) -> None:
    """Before it is open, while it is, and they are still there when it is opened again."""
    ours = blocking.Engine(url)
    ours.register(doubles)
    assert ours.start(doubles, 1).result(timeout=PATIENCE) == 2
    ours.register(sums)
    assert ours.start(sums, [1, 2]).result(timeout=PATIENCE) == 3
    ours.close()
    with ours:
        assert ours.start(sums, [3]).result(timeout=PATIENCE) == 3
    with pytest.raises(DeclarationError, match="this name and version"):
        ours.register(sf.workflow(name="sums")(another))


async def another(_ctx: sf.Context) -> None:
    """Be another workflow of the same name."""


def test_a_space_that_was_given_stays_open(space: blocking.Space) -> None:
    """It belongs to whoever opened it; runs and locks lie in the same store."""
    with blocking.Engine(space, workflows=WORKFLOWS) as ours:
        run = ours.start(doubles, 1)
        assert run.result(timeout=PATIENCE) == 2
        assert ours.space.presence == space.presence
        assert (ours.address, repr(ours)) == ("", "<blocking Engine on a space>")

    assert space.read(space.key("life", run.id)).records


def test_it_is_shown_without_secrets() -> None:
    """Neither the engine nor a handle shows what is in the URL."""
    with engine("memory://secrets") as ours:
        assert repr(ours) == "<blocking Engine on memory://secrets>"
        assert repr(ours.run("r")) == "<blocking run r>"


# --- refusals --------------------------------------------------------------------------------------------------------


def test_inside_an_event_loop_it_is_refused_with_the_way_out() -> None:
    """Neither opening nor using nor closing may block a loop."""
    with engine("memory://") as ours:

        async def use() -> None:
            for attempt in (ours.open, ours.list, ours.run("r").info, ours.schedules.list, ours.close):
                with pytest.raises(UsageError, match=r"async with standfast\.Engine"):
                    attempt()

        asyncio.run(use())


def test_a_thread_beside_the_loop_may_use_it() -> None:
    """``asyncio.to_thread`` is the way from a coroutine."""
    with engine("memory://") as ours:
        run = asyncio.run(asyncio.to_thread(ours.start, doubles, 4))
        assert run.result(timeout=PATIENCE) == 8


# --- closing ---------------------------------------------------------------------------------------------------------


def test_a_run_that_waits_is_handed_back_when_the_engine_closes(url: str) -> None:
    """Another engine takes it up at once, without waiting for a lease."""
    with engine(url) as other:
        with engine(url) as ours:
            run = ours.start(waits, 1)
            until_it_waits(run)
        other.signal(run.id, "go", 2)

        assert other.result(run.id, timeout=PATIENCE) == 3


def test_a_step_under_way_is_waited_for_when_the_engine_closes(url: str) -> None:
    """It ends in its time of grace, and what it returned is recorded: nobody runs it a second time."""
    with engine(url, drive=False) as other:
        ours = engine(url)
        run = ours.start(is_slow)
        assert BEGAN.wait(PATIENCE)
        closing = beside(ours.close)
        LET_GO.set()
        closing.result(PATIENCE)

        assert other.get(run.id).status != "running"
        assert [entry.kind for entry in other.history(run.id)].count("step") == 1


def test_a_step_that_takes_too_long_is_not_waited_for(url: str) -> None:
    """When its time of grace is over, the run is handed back, and another engine begins the step anew."""
    ours = engine(url)
    run = ours.start(is_slow)
    assert BEGAN.wait(PATIENCE)
    with engine(url) as other:
        ours.close(grace=0)
        LET_GO.set()

        assert other.result(run.id, timeout=PATIENCE) == "slow"


def test_threads_that_wait_are_told_when_the_engine_closes(url: str) -> None:
    """Nobody waits for ever for a result that cannot be heard of here any more."""
    ours = engine(url)
    run = ours.start(waits, 1)
    until_it_waits(run)
    waiters = [beside(run.result) for _ in range(20)]
    until_they_wait(20)
    ours.close()

    for waiter in waiters:
        problem = waiter.exception(PATIENCE)
        assert isinstance(problem, StoreClosedError | EngineNotOpenError)
        assert "await" not in str(problem)


def test_many_threads_use_it_while_it_closes() -> None:
    """Each call works or says that the engine is closed; none hangs."""
    ours = engine("memory://")
    ours.open()

    def use() -> int:
        for number in range(10_000):
            try:
                ours.start(doubles, number)
            except (EngineNotOpenError, StoreClosedError):
                return number
        return -1

    threads = [beside(use) for _ in range(4)]
    until(lambda: len(ours.list().runs) > 10)
    ours.close()

    assert all(thread.result(PATIENCE) >= 0 for thread in threads)


# --- interruptions ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C be heard, also in a program that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c_when(come: Callable[[], None]) -> None:
    """Interrupt the main thread when something has come."""
    come()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_wait_and_not_the_run() -> None:
    """Whoever waits for a result can be interrupted; the run goes on."""
    with engine("memory://") as ours:
        run = ours.start(waits, 1)
        until_it_waits(run)
        pressed = beside(lambda: press_ctrl_c_when(lambda: until_they_wait(1)))
        with pytest.raises(KeyboardInterrupt):
            run.result()
        pressed.result(PATIENCE)
        run.signal("go", 1)

        assert run.result(timeout=PATIENCE) == 2


def test_an_interrupted_opening_closes_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the last moment leaves neither an engine nor a store open."""
    ours = engine("memory://")
    result = BackgroundCall.result
    opened: list[sf.Engine] = []

    def interrupted(self: BackgroundCall[Any]) -> object:
        found = result(self)
        if isinstance(found, sf.Engine):
            opened.append(found)
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patched:
        patched.setattr(BackgroundCall, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.open()

    assert [each.worker for each in opened] == [None]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_it_closes_cuts_the_wait_for_steps_short() -> None:
    """The impatient get the run handed back, and the program goes on."""
    with engine("memory://hurry", drive=False) as other:
        ours = engine("memory://hurry")
        run = ours.start(is_slow)
        assert BEGAN.wait(PATIENCE)
        pressed = beside(lambda: press_ctrl_c_when(lambda: until(lambda: is_closing(ours))))
        with pytest.raises(KeyboardInterrupt):
            ours.close(grace="1 hour")
        pressed.result(PATIENCE)

        assert other.get(run.id).owner == ""
        other.cancel(run.id, force=True)
        with pytest.raises(RunCancelledError):
            other.result(run.id)


def is_closing(ours: blocking.Engine) -> bool:
    """Tell whether an engine refuses to be used."""
    try:
        ours.list()
    except EngineNotOpenError:
        return True
    return False
