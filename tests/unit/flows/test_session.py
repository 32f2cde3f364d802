"""Session state: operations that are noted now, and done to the newest state at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import SessionStateError
from standfast.flows.session import (
    AppendToField,
    DeleteField,
    IncrementField,
    Operation,
    Session,
    SetField,
    UpdateField,
    apply,
)

if TYPE_CHECKING:
    from standfast.codec import JsonValue

FIELDS = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
STATES = st.dictionaries(FIELDS, VALUES)
INCREMENTS = st.builds(IncrementField, FIELDS, st.integers())
APPENDS = st.builds(AppendToField, FIELDS, st.lists(VALUES, max_size=3).map(tuple))
SETS = st.builds(SetField, FIELDS, VALUES)
DELETES = st.builds(DeleteField, FIELDS)
WRAPS = st.builds(UpdateField, FIELDS, st.just(lambda value: [value]))
SAFE = st.lists(SETS | DELETES | WRAPS).map(tuple)


def numbers() -> st.SearchStrategy[dict[str, Any]]:
    """Make states of numbers only."""
    return st.dictionaries(FIELDS, st.integers())


def lists() -> st.SearchStrategy[dict[str, Any]]:
    """Make states of lists only."""
    return st.dictionaries(FIELDS, st.lists(VALUES, max_size=3))


def session(**state: JsonValue) -> Session:
    """Return a session as a request sees it, over this state."""

    async def load() -> dict[str, JsonValue]:
        return state

    return Session("s-1", load)


@given(numbers(), st.lists(INCREMENTS).map(tuple), st.lists(INCREMENTS).map(tuple))
def test_increments_of_two_requests_both_count(
    state: dict[str, Any], one: tuple[Operation, ...], other: tuple[Operation, ...]
) -> None:
    """In whichever order they end."""
    assert apply(apply(state, one), other) == apply(apply(state, other), one)


@given(lists(), st.lists(APPENDS).map(tuple), st.lists(APPENDS).map(tuple))
def test_appends_of_two_requests_both_land(
    state: dict[str, Any], one: tuple[AppendToField, ...], other: tuple[AppendToField, ...]
) -> None:
    """Each request's items in their own order, those of the first to end before those of the other."""
    after = apply(apply(state, one), other)
    for field in after:
        items = [item for each in (*one, *other) if each.field == field for item in each.items]
        assert after[field] == [*state.get(field, []), *items]


@given(STATES, SAFE, SAFE)
def test_operations_that_are_applied_in_two_parts_do_the_same(
    state: dict[str, Any], first: tuple[Operation, ...], then: tuple[Operation, ...]
) -> None:
    """Nothing is remembered between them but the state."""
    assert apply(apply(state, first), then) == apply(state, first + then)


@given(STATES, SAFE)
def test_a_state_is_left_as_it_is(state: dict[str, Any], operations: tuple[Operation, ...]) -> None:
    """Applying makes a new one, and gives the same each time."""
    before = repr(state)
    assert apply(state, operations) == apply(state, operations)
    assert repr(state) == before


@given(STATES, SAFE)
def test_fields_that_nobody_named_stay(state: dict[str, Any], operations: tuple[Operation, ...]) -> None:
    """What others do to other fields is not undone."""
    after = apply(state, operations)
    untouched = state.keys() - {each.field for each in operations}
    assert {field: after[field] for field in untouched} == {field: state[field] for field in untouched}


@given(STATES, SAFE)
async def test_a_request_sees_what_it_staged(state: dict[str, Any], operations: tuple[Operation, ...]) -> None:
    """Reads are as if it had been written already."""
    seen = session(**state)
    for each in operations:
        match each:
            case SetField():
                seen.set(each.field, each.value)
            case UpdateField():
                seen.update(each.field, each.function)
            case _:
                seen.delete(each.field)

    assert await seen.read() == apply(state, operations)
    assert apply(state, seen.operations) == await seen.read()


async def test_all_operations_read_as_they_are_written() -> None:
    """Each of the five, in the order of the code."""
    seen = session(count=1, messages=["a"], gone=True)

    seen.increment("count", 2)
    seen.append("messages", "b", "c")
    seen.set("title", {"text": "x"})
    seen.update("title", lambda title: {**title, "size": 1})
    seen.delete("gone")

    expected = {"count": 3, "messages": ["a", "b", "c"], "title": {"text": "x", "size": 1}}
    assert await seen.read() == expected
    assert await seen.get("gone", "nothing") == "nothing"


async def test_missing_fields_begin_as_nothing() -> None:
    """A number begins at 0, a list empty, and a function gets None."""
    seen = session()
    seen.increment("count")
    seen.append("messages", "a")
    seen.update("title", lambda title: f"was {title}")
    assert await seen.read() == {"count": 1, "messages": ["a"], "title": "was None"}


async def test_an_append_during_a_long_answer_is_kept() -> None:
    """What is staged is done to the newest state, not to what was read at the beginning."""
    answer = session(messages=["question"])
    await answer.read()
    newest: dict[str, JsonValue] = {"messages": ["question", "and another"]}

    answer.append("messages", "answer")

    assert apply(newest, answer.operations) == {"messages": ["question", "and another", "answer"]}


async def test_the_state_is_read_once_and_only_if_it_is_asked_for() -> None:
    """Staging alone reads nothing."""
    reads = 0

    async def load() -> dict[str, JsonValue]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return {"count": reads}

    seen = Session("s-1", load)
    seen.set("title", "x")
    assert reads == 0
    assert [await seen.get("count"), await seen.get("count")] == [1, 1]


async def test_two_reads_at_once_see_one_state() -> None:
    """However many branches of an action ask first."""
    loaded = iter(range(10))

    async def load() -> dict[str, JsonValue]:
        number = next(loaded)
        await asyncio.sleep(0)
        return {"count": number}

    seen = Session("s-1", load)
    first, second = await asyncio.gather(seen.get("count"), seen.get("count"))
    assert first == second == await seen.get("count")


async def test_what_was_read_is_a_copy() -> None:
    """Changing it changes nothing, so nothing is kept by accident."""
    seen = session(messages=["a"])
    (await seen.get("messages")).append("b")
    cast("Any", await seen.read())["messages"].append("c")
    assert await seen.read() == {"messages": ["a"]}


def test_a_function_that_changes_what_it_was_given_changes_a_copy() -> None:
    """The state that it was applied to is left as it is, and can be applied to again."""

    def add(messages: list[str]) -> list[str]:
        messages.append("b")
        return messages

    state: dict[str, JsonValue] = {"messages": ["a"]}
    assert apply(state, (UpdateField("messages", add),)) == {"messages": ["a", "b"]}
    assert state == {"messages": ["a"]}


async def test_what_was_staged_is_a_copy() -> None:
    """What the action does to its own value later is not part of it."""
    seen, value = session(), {"n": 1}
    seen.set("a", cast("Any", value))
    value["n"] = 2
    assert await seen.get("a") == {"n": 1}


@pytest.mark.parametrize("value", ["x", [1], {"n": 1}, True])
def test_what_is_no_number_cannot_be_incremented(value: Any) -> None:
    """Also if it became so while the request ran: then nothing of it is kept."""
    with pytest.raises(SessionStateError, match=r"'a' of the session is a .* cannot be incremented"):
        apply({"a": value}, (IncrementField("a", 1),))


@pytest.mark.parametrize("value", ["x", 1, {"n": 1}, False])
def test_what_is_no_list_cannot_be_appended_to(value: Any) -> None:
    """Text is not a list of letters."""
    with pytest.raises(SessionStateError, match="cannot be appended to"):
        apply({"a": value}, (AppendToField("a", (1,)),))


@pytest.mark.parametrize("by", [float("nan"), float("inf"), "1", True, None])
def test_an_increment_is_a_number(by: Any) -> None:
    """What could not be stored is refused where it is staged."""
    with pytest.raises(SessionStateError):
        session().increment("a", by)


@pytest.mark.parametrize("state", [1e308, 10**400])
def test_a_number_that_gets_too_large_is_refused(state: Any) -> None:
    """It would be no number any more."""
    with pytest.raises(SessionStateError, match="too large"):
        apply({"a": state}, (IncrementField("a", 1e308),))


@pytest.mark.parametrize("value", [float("nan"), b"x", object(), {1: 2}, {"secret": {1, 2}}])
def test_what_is_not_json_shaped_is_refused_and_not_shown(value: Any) -> None:
    """Where it is staged, naming the field."""
    for stage in (session().set, session().append):
        with pytest.raises(SessionStateError, match="'a' of the session cannot be stored"):
            stage("a", value)


async def test_what_a_function_returns_has_to_be_json_shaped() -> None:
    """It is found out when the state is looked at."""
    seen = session(a=1)
    seen.update("a", lambda _: object())
    with pytest.raises(SessionStateError, match="'a'"):
        await seen.read()


@pytest.mark.parametrize("field", ["", "a\nb", "x" * 201, 7])
def test_a_field_has_a_name(field: Any) -> None:
    """Short and printable."""
    with pytest.raises(SessionStateError):
        session().set(field, 1)


async def test_an_update_is_a_plain_function() -> None:
    """It is called as often as the state is looked at, so it cannot wait for anything."""

    async def slow(value: object) -> object:
        return value

    with pytest.raises(SessionStateError, match="plain function"):
        session().update("a", slow)


async def test_a_request_without_a_session_has_nothing_to_keep() -> None:
    """Reading gives nothing, and staging is refused instead of being lost."""
    nobodys = Session("", session(a=1).read)
    assert await nobodys.read() == {}
    with pytest.raises(SessionStateError, match="belongs to no session"):
        nobodys.set("a", 1)
