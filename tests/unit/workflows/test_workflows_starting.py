"""Starting runs: by the workflow, with bound arguments, and by name where the code is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import structs

import standfast as sf
from standfast import blocking
from standfast.errors import (
    DeclarationError,
    EncodeError,
    RunFailedError,
    UnknownWorkflowError,
    WorkflowAlreadyExistsError,
    WorkflowConcurrencyLimitExceededError,
    WrongArgumentsError,
)
from standfast.workflows.start import checked_start

if TYPE_CHECKING:
    from collections.abc import Callable


@sf.workflow(name="import-customer-data")
async def imports(_ctx: sf.Context, customer: str, /, priority: int = 1, *, dry: bool = False) -> str:
    """Tell what it was started with."""
    return f"{customer} {priority} {dry}"


@sf.workflow
async def has_names(_ctx: sf.Context, id: str, delay: int = 0) -> str:  # noqa: A002 -- it is what is tested
    """Have parameters with the names of options."""
    return f"{id} {delay}"


@sf.workflow(concurrency=1, timeout="1 hour")
async def one_at_a_time(ctx: sf.Context) -> None:
    """Wait, so that no other one begins."""
    await ctx.wait_signal("go")


@sf.workflow(concurrency=sf.Limit(1, key=lambda customer: customer))
async def keyed(_ctx: sf.Context, customer: str) -> str:
    """Have a limit for each key."""
    return customer


@sf.workflow
async def many(_ctx: sf.Context, items: list[str]) -> int:
    """Count."""
    return len(items)


SOON = sf.collect(many, sf.Batch(1, "1 hour"))
WORKFLOWS: list[Any] = [imports, has_names, one_at_a_time, keyed, SOON]


def other(name: str) -> sf.Workflow[[str], str]:
    """Return another workflow of a name."""

    @sf.workflow(name=name)
    async def another(_ctx: sf.Context, customer: str) -> str:
        return customer

    return another


# --- arguments ------------------------------------------------------------------------------------------------------


async def test_arguments_are_given_by_place_and_by_name(url: str) -> None:
    """With and without options, directly, in a mapping, and bound."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        runs = [
            await engine.start(imports, "ann", 2, dry=True),
            await engine.start(imports, "ann", priority=2, dry=True),
            await engine.start(imports, "ann", 2, kwargs={"dry": True}, id="a"),
            await engine.start(imports.bind("ann", priority=2, dry=True), id="b", tags=["x"]),
            await engine.start("import-customer-data", "ann", priority=2, dry=True, id="c"),
            await engine.start("import-customer-data", "ann", kwargs={"priority": 2}, dry=True),
        ]
        assert [await run.result() for run in runs] == ["ann 2 True"] * 6
        assert [run.id for run in runs][2:5] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("args", "given"),
    [
        ((), {}),
        (("ann", 1, True), {}),
        (("ann",), {"prio": 2}),
        ((), {"customer": "ann"}),
        (("ann",), {"dry": True, "kwargs": {"dry": True}}),
    ],
    ids=["missing", "too many", "unknown", "by name though by place", "twice"],
)
@pytest.mark.parametrize("by_name", [False, True], ids=["workflow", "name"])
async def test_wrong_arguments_are_refused_before_anything_is_written(
    url: str, args: tuple[Any, ...], given: dict[str, Any], *, by_name: bool
) -> None:
    """Where the code is, and where only its parameters are known."""
    async with sf.Engine(url, workflows=WORKFLOWS) as worker, sf.Engine(url, drive=False) as web:
        start: Callable[..., Any] = web.start if by_name else worker.start
        with pytest.raises(WrongArgumentsError, match=r"import-customer-data|imports"):
            await start("import-customer-data" if by_name else imports, *args, **given)
        assert (await worker.list()).runs == ()


async def test_a_parameter_with_the_name_of_an_option_is_not_taken_for_it(url: str) -> None:
    """What could be meant for both is refused, and there are three ways to say it."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        for given in cast("list[dict[str, Any]]", [{"id": "x"}, {"id": "x", "delay": 3}]):
            with pytest.raises(WrongArgumentsError, match=r"id= is an option .*\.bind"):
                await engine.start(has_names, **given)
        with pytest.raises(WrongArgumentsError, match="delay= is an option"):
            await engine.start(has_names, "x", delay=3)
        by_place = await engine.start(has_names, "x", id="run-1")
        in_kwargs = await engine.start(has_names, kwargs={"id": "x"}, id="run-2")
        bound = await engine.start(has_names.bind(id="x", delay=3), id="run-3", delay=0.001)
        assert [run.id for run in (by_place, in_kwargs, bound)] == ["run-1", "run-2", "run-3"]
        assert [await run.result() for run in (by_place, in_kwargs, bound)] == ["x 0", "x 0", "x 3"]


async def test_bound_arguments_are_checked_and_take_no_others(url: str) -> None:
    """Binding checks them; what is bound is what is started, whatever becomes of the objects."""
    with pytest.raises(WrongArgumentsError):
        imports.bind()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue] -- it is what is tested
    items = ["a"]
    bound = many.bind(items)
    items.append("b")
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        assert await (await engine.start(bound)).result() == 1
        with pytest.raises(WrongArgumentsError, match="bound already"):
            await engine.start(bound, ["c"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue,reportArgumentType] -- it is what is tested
        daily = await engine.schedules.create(sf.Schedule(many.bind(items), id="daily", cron="0 9 * * *"))
        assert await (await engine.schedules.trigger(daily.id)).result() == 2
        run, outcome = await engine.start_or_signal(one_at_a_time.bind(), id="r", signal="go")
        await run.result()
        assert outcome == "started"


# --- what is registered ---------------------------------------------------------------------------------------------


async def test_a_workflow_that_the_engine_does_not_have_is_refused(url: str) -> None:
    """Also by one that drives nothing, if it was given some, and however full it is."""
    async with sf.Engine(url, workflows=[imports]) as worker, sf.Engine(url, workflows=[imports], drive=False) as web:
        for engine in (worker, web):
            with pytest.raises(UnknownWorkflowError, match=r"'has_names' in this engine; it has import-customer-data"):
                await engine.start(has_names, "x")
            with pytest.raises(UnknownWorkflowError):
                await SOON.add(engine, "x")
    async with sf.Engine(url, workflows=[one_at_a_time], worker=sf.admin.WorkerLimits(max_loaded=1)) as full:
        await full.start(one_at_a_time)
        with pytest.raises(UnknownWorkflowError):
            await full.start(has_names, "x")


async def test_another_workflow_of_that_name_is_refused(url: str) -> None:
    """The error names both, and where they are."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        with pytest.raises(
            DeclarationError,
            match=r"another \(.*test_workflows_starting.py.*imports \(.*test_workflows_starting.py",
        ):
            await engine.start(other("import-customer-data"), "x")
        assert (await engine.list()).runs == ()


async def test_one_that_has_none_takes_what_it_is_given(url: str) -> None:
    """It drives nothing, and others do."""
    async with sf.Engine(url, workflows=WORKFLOWS), sf.Engine(url, drive=False) as web:
        assert await (await web.start(imports, "ann")).result() == "ann 1 False"


@sf.workflow
async def has_a_child(ctx: sf.Context, which: str) -> str:
    """Start what is not there, another one of that name, or one that another worker has."""
    children: dict[str, sf.Workflow[[str], str]] = {
        "nobody's": other("nobody"),
        "another": other("import-customer-data"),
        "elsewhere": keyed,
    }
    return await ctx.child(children[which], "ann")


async def test_a_child_that_is_another_workflow_is_refused(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """One that another worker has is started, and one that none has waits for it, which the log says."""
    async with sf.Engine(url, workflows=[has_a_child, imports]) as engine:
        waits = await engine.start(has_a_child, "nobody's", id="r")
        async with sf.Engine(url, workflows=[other("nobody")]):
            assert await waits.result() == "ann"
        assert "the run 'r' starts a child of 'nobody', which no worker has had" in caplog.text
        with pytest.raises(RunFailedError, match="under that name"):
            await (await engine.start(has_a_child, "another")).result()
        async with sf.Engine(url, workflows=[keyed]):
            assert await (await engine.start(has_a_child, "elsewhere")).result() == "ann"


# --- by name --------------------------------------------------------------------------------------------------------


async def test_a_process_without_the_code_starts_by_name(url: str) -> None:
    """A worker has told which workflows there are; it need not be there any more, or yet again."""
    async with sf.Engine(url, workflows=WORKFLOWS):
        pass
    async with sf.Engine(url, drive=False) as web:
        run = await web.start("import-customer-data", "ann", 2, id="r")
        again = await web.start("import-customer-data", "ann", 2, id="r")
        with pytest.raises(WorkflowAlreadyExistsError):
            await web.start("import-customer-data", "bob", id="r")
        assert (run.is_new, again.is_new, again.id) == (True, False, "r")
        assert (await run.info()).input == {"customer": "ann", "priority": 2}
        async with sf.Engine(url, workflows=WORKFLOWS) as worker:
            assert await run.result() == "ann 2 False"
            same = await worker.start(imports, "ann", 2, id="r")
            assert not same.is_new  # what both have stored is the same


@pytest.mark.parametrize("name", ["import-customer", "many.batch", ""])
async def test_a_name_that_nobody_has_is_refused(url: str, name: str) -> None:
    """The error names those that there are. What collects items is not among them: it is started by adding one."""
    async with sf.Engine(url, workflows=[imports, SOON]) as worker, sf.Engine(url, drive=False) as web:
        for engine in (worker, web):
            with pytest.raises((UnknownWorkflowError, DeclarationError)) as refused:
                await engine.start(name, "ann")
            if isinstance(refused.value, UnknownWorkflowError):
                assert refused.value.known == ("import-customer-data", "many")
        assert (await worker.list()).runs == ()


async def test_tenants_and_namespaces_have_names_of_their_own(url: str) -> None:
    """What a worker has in one says nothing about another."""
    async with sf.Engine(url, workflows=[imports]), sf.Engine(url, drive=False, tenant="acme") as web:
        with pytest.raises(UnknownWorkflowError, match="it has none"):
            await web.start("import-customer-data", "ann")


async def test_a_name_that_nobody_has_yet_is_started_if_that_is_meant(url: str) -> None:
    """The run waits for a worker that has it. Without parameters that are known, arguments go by name."""
    async with sf.Engine(url, drive=False) as web:
        with pytest.raises(WrongArgumentsError, match="by name"):
            await web.start("keyed", "ann", unknown="start")
        with pytest.raises(DeclarationError, match="neither"):
            await web.start("keyed", customer="ann", unknown="maybe")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType,reportCallIssue] -- it is what is tested
        run = await web.start("many", items=["a", "b"], unknown="start")
        async with sf.Engine(url, workflows=[SOON]):
            assert await run.result() == 2


async def test_limits_hold_without_the_code(url: str) -> None:
    """Those of all runs together; a key is something that only the code can tell."""
    async with sf.Engine(url, workflows=WORKFLOWS) as worker, sf.Engine(url, drive=False) as web:
        await web.start("one_at_a_time", id="first")
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await web.start("one_at_a_time")
        with pytest.raises(DeclarationError, match="key that only its code can compute"):
            await web.start("keyed", "ann")
        await worker.signal("first", "go")
        await worker.result("first")


async def test_what_is_not_json_shaped_needs_the_code(url: str) -> None:
    """Types are not known without it."""
    async with sf.Engine(url, workflows=WORKFLOWS), sf.Engine(url, drive=False) as web:
        with pytest.raises(EncodeError):
            await web.start("import-customer-data", object())


async def test_an_input_of_another_type_is_told_by_the_worker(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The types are the worker's to check: the run waits for one that takes it, and the log says why."""
    async with sf.Engine(url, workflows=WORKFLOWS) as worker, sf.Engine(url, drive=False) as web:
        run = await web.start("has_names", "x", "three", id="r")
        async with worker.space.watch(worker.space.key("life", run.id)) as watch:
            while not (await worker.get(run.id)).waits_for.startswith("a worker whose code takes its input"):
                await watch.wait(0.5)
    [entry] = {each.getMessage() for each in caplog.records}
    assert entry.startswith('event=run-code-differs run=r recorded="its input"')
    assert "Expected `int`, got `str` - at `$.delay`" in entry


async def test_what_is_registered_later_is_known_later(url: str) -> None:
    """Also to others."""
    async with sf.Engine(url, workflows=[imports]) as worker, sf.Engine(url, drive=False) as web:
        worker.register(has_names)
        assert await (await worker.start("has_names", "x")).result() == "x 0"
        assert await web.start("has_names", "x", unknown="raise") is not None


def test_blocking_code_starts_by_name_too(url: str) -> None:
    """With the same errors."""
    with blocking.Engine(url, workflows=WORKFLOWS), blocking.Engine(url, drive=False) as web:
        run = web.start("import-customer-data", "ann", dry=True, id="r")
        assert (run.id, run.result(timeout=15)) == ("r", "ann 1 True")
        assert web.start(imports.bind("ann", priority=3), id="s").result(timeout=15) == "ann 3 False"
        assert web.start(imports, "ann", priority=4).result(timeout=15) == "ann 4 False"
        with pytest.raises(UnknownWorkflowError):
            web.start("import-customer", "ann")
        with pytest.raises(WrongArgumentsError):
            web.start("import-customer-data")


@pytest.mark.parametrize("drive", [True, False])
async def test_a_plain_start_is_checked_as_any_other(drive: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    """A workflow that is there, by place and without options, goes a shorter way, which comes to the same."""
    async with sf.Engine("memory://", workflows=WORKFLOWS, drive=drive) as engine:
        args: tuple[Any, ...]
        for workflow, args in ((imports, ("ann",)), (imports, ("ann", 7)), (keyed, ("bob",)), (one_at_a_time, ())):
            plain = await checked_start(engine, workflow, args, None, {}, {})
            general = await checked_start(engine, workflow, args, None, {}, {"id": None})
            assert structs.replace(plain, run_id="") == structs.replace(general, run_id="")
            assert plain.run_id != general.run_id
        for problem in (("ann", 1, True), ("ann", "high")):
            for options in ({}, {"id": None}):
                with pytest.raises((WrongArgumentsError, EncodeError)):
                    await checked_start(engine, imports, problem, None, {}, options)
