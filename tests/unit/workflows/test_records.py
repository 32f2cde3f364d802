"""Idempotency keys of steps: the same at each try of one effect, and never that of another effect."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import standfast as sf
from standfast.errors import RunNotFoundError
from standfast.stores.protocol import Put
from standfast.workflows.records import HEADERS, RunKeys, effect_key
from standfast.workflows.replay import Branch
from tests.unit.workflows.engines import until

KEYS: Final[list[str]] = []

NAMES: Final = st.sampled_from(["default", "a", "b", "a:b", "b:c", "c", "%", "%3A", "1", "2", ":", "a%3Ab"]) | st.text(
    st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=6
)
PATHS: Final = st.sampled_from(["", "g1.0", "g1.1", "g1.0/g1.0", "g2.0"])
EFFECTS: Final = st.tuples(NAMES, NAMES, NAMES, st.integers(1, 12), PATHS, NAMES)


def key_of(namespace: str, tenant: str, run: str, incarnation: int, path: str, step: str) -> str:
    """Return the key of a step."""
    return effect_key(namespace, tenant, run, incarnation, Branch(path).placed(step))


@given(EFFECTS, EFFECTS)
def test_two_effects_never_have_one_key(one: Any, other: Any) -> None:
    """Whatever the names of tenant, namespace, run, branch and step are, and however often the run's id was used."""
    assert (key_of(*one) == key_of(*other)) == (one == other)


@given(EFFECTS, st.data())
def test_two_effects_that_differ_in_one_name_never_have_one_key(one: Any, data: st.DataObject) -> None:
    """As before, for those that are nearly the same."""
    place = data.draw(st.integers(0, 5))
    other = list(one)
    other[place] = data.draw([NAMES, NAMES, NAMES, st.integers(1, 12), PATHS, NAMES][place])
    assert (key_of(*one) == key_of(*other)) == (one == tuple(other))


def test_the_simple_key_is_run_and_step() -> None:
    """As the documentation shows it."""
    assert key_of("default", "default", "order-7", 1, "", "charge") == "order-7:charge"
    assert key_of("default", "default", "order-7", 1, "g1.0", "charge#2") == "order-7:g1.0/charge#2"
    assert key_of("prod", "default", "order-7", 1, "", "charge") == ":prod:default:order-7:1:charge"
    assert key_of("default", "default", "order-7", 2, "", "charge") == ":default:default:order-7:2:charge"


# --- in runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _fresh() -> None:
    KEYS.clear()


@sf.step
async def note() -> str:
    """Note the key that this step has."""
    KEYS.append(sf.current_step().idempotency_key)
    return KEYS[-1]


@sf.workflow
async def one(ctx: sf.Context) -> str:
    """Take one step."""
    return await ctx.step("charge", note)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def limited(ctx: sf.Context) -> str:
    """Take one step, one run at a time."""
    return await ctx.step("charge", note)


@sf.workflow
async def branches(ctx: sf.Context) -> list[list[str]]:
    """Take the same step in two branches, and around them."""

    async def branch() -> list[str]:
        asked = ctx.idempotency_key("charge")
        return [asked, await ctx.step("charge", note)]

    return [await branch(), *await ctx.gather(branch(), branch())]


@sf.workflow
async def parent(ctx: sf.Context) -> str:
    """Let a child take one step, and wait for a signal."""
    await ctx.wait_signal("go")
    return await ctx.child(one)


WORKFLOWS: Final[list[Any]] = [one, limited, branches, parent]


def opened_on(url: str, **options: Any) -> sf.Engine:
    """Return an engine that has all of these."""
    return sf.Engine(url, workflows=WORKFLOWS, **options)


async def test_branches_that_run_side_by_side_have_keys_of_their_own(url: str) -> None:
    """The context tells in each of them the key that the step has there."""
    async with opened_on(url) as engine:
        run = await engine.start(branches, id="r")
        found = await run.result()
    assert [asked for asked, _ in found] == [had for _, had in found] == ["r:charge", "r:g1.0/charge", "r:g1.1/charge"]


async def test_tenants_and_namespaces_do_not_share_keys(url: str) -> None:
    """Each may have a run of the same id."""
    for namespace, tenant in [("default", "default"), ("prod", "default"), ("default", "ann"), ("prod", "ann")]:
        async with opened_on(url, namespace=namespace, tenant=tenant) as engine:
            await (await engine.start(one, id="order-7")).result()
    assert len(set(KEYS)) == 4
    assert KEYS[0] == "order-7:charge"


@pytest.mark.parametrize("workflow", [one, limited], ids=lambda each: each.name)
async def test_a_new_run_under_the_id_of_a_purged_one_has_other_keys(url: str, workflow: Any) -> None:
    """However often that happens; and nothing but the number of runs is kept under the id."""
    async with opened_on(url) as engine:
        for number in range(3):
            run = await engine.start(workflow, id="order-7")
            assert run.is_new
            await run.result()
            await until(engine, "order-7", "completed")
            assert await engine.purge("order-7") == 1
            with pytest.raises(RunNotFoundError):
                await engine.get("order-7")
            keys = RunKeys(engine.space, "order-7")
            left = HEADERS.decode((await engine.space.read(keys.header)).records[keys.header].value)
            assert (left.is_gone, left.incarnation) == (True, number + 1)
    assert KEYS == ["order-7:charge", ":default:default:order-7:2:charge", ":default:default:order-7:3:charge"]


async def test_a_new_run_under_the_id_of_one_that_has_ended_has_other_keys_and_children(url: str) -> None:
    """``start_new`` begins anew: a child of the old run is not taken for one of the new run."""
    async with opened_on(url) as engine:
        for number in range(2):
            _, outcome = await engine.start_or_signal(
                parent, id="p", signal="go", signal_id=str(number), on_terminal="start_new"
            )
            assert outcome == "started"
            assert await engine.result("p") == KEYS[number]
    assert KEYS == ["p.one:charge", ":default:default:p.one:2:charge"]


async def test_a_run_with_an_id_that_is_made_up_leaves_nothing(url: str) -> None:
    """That id never comes again."""
    async with opened_on(url) as engine:
        run = await engine.start(one)
        await run.result()
        await engine.purge(run.id)
        keys = RunKeys(engine.space, run.id)
        assert (await engine.space.read(keys.header)).get(keys.header) is None


async def test_a_run_that_an_early_version_has_started_keeps_its_keys(url: str) -> None:
    """It may have charged by them, and crashed before that was recorded."""
    async with opened_on(url, namespace="prod", drive=False) as engine:
        await engine.start(one, id="a:b")
        keys, space = RunKeys(engine.space, "a:b"), engine.space
        record = (await space.read(keys.header)).records[keys.header]
        early = structs.replace(HEADERS.decode(record.value), incarnation=0, chosen=False)
        await space.commit(Put(keys.header, HEADERS.encode(early), record.version))
    async with opened_on(url, namespace="prod") as engine:
        assert await engine.result("a:b") == "a:b:charge"
        await engine.purge("a:b")
        assert await (await engine.start(one, id="a:b")).result() == ":prod:default:a%3Ab:2:charge"


async def test_a_run_that_goes_on_after_it_failed_keeps_its_keys(url: str) -> None:
    """It is the same effect."""

    @sf.step
    async def charge() -> str:
        KEYS.append(sf.current_step().idempotency_key)
        if len(KEYS) == 1:
            raise ValueError("not yet")
        return KEYS[-1]

    @sf.workflow
    async def pays(ctx: sf.Context) -> str:
        return await ctx.step("charge", charge)

    async with sf.Engine(url, workflows=[pays]) as engine:
        await engine.start(pays, id="r")
        await until(engine, "r", "failed")
        await engine.retry("r")
        assert await engine.result("r") == "r:charge"
    assert KEYS == ["r:charge", "r:charge"]
