"""Policies: values that are checked when they are made."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

import standfast as sf
from standfast.errors import DeclarationError, InvalidArgumentError
from standfast.policies import POLICIES, as_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.policies import Policy

WHERE = "flow 'support-chat', action 'respond'"
MAKE: dict[str, Callable[..., Policy]] = {
    "queue": sf.Queue,
    "reject": sf.Reject,
    "debounce": lambda **options: sf.Debounce("1s", **options),
    "restart": sf.Restart,
    "batch": lambda **options: sf.Batch(10, "1s", **options),
    "join": sf.Join,
    "latest": sf.Latest,
}


async def slow_key(_: sf.Call) -> str:
    """Return a key too late."""
    return "x"


def test_a_policy_is_what_its_options_say() -> None:
    """Lengths of time can be written in every way, and equal policies are equal and hash alike."""
    written = sf.Debounce("500ms", max_wait=timedelta(seconds=5))

    assert written == sf.Debounce(0.5, max_wait="5 seconds")
    assert hash(written) == hash(sf.Debounce(0.5, max_wait="5 seconds"))
    assert written != sf.Debounce("500ms", max_wait="6s")
    assert sf.Reject() != sf.Join()


def test_a_policy_does_not_change() -> None:
    """Flows and actions share it."""
    with pytest.raises(AttributeError, match="Queue does not change"):
        cast("Any", sf.Queue()).timeout = 5


def test_a_policy_shows_its_options() -> None:
    """In a debugger it can be seen what was declared."""
    assert repr(sf.Queue(key="user")) == "Queue(key='user', max_waiting=100, timeout='default')"


@pytest.mark.parametrize("name", ["allow", "queue", "reject", "restart", "join", "latest"])
def test_a_policy_without_options_can_be_given_by_its_name(name: str) -> None:
    """``"queue"`` is ``sf.Queue()``."""
    assert as_policy(cast("Any", name), WHERE) == cast("Any", POLICIES[name])()


@pytest.mark.parametrize(("name", "example"), [("debounce", r"sf\.Debounce"), ("batch", r"sf\.Batch")])
def test_a_policy_that_needs_options_is_not_taken_by_its_name(name: str, example: str) -> None:
    """The error shows how it is written."""
    with pytest.raises(DeclarationError, match=f"action 'respond'.*needs options.*{example}"):
        as_policy(cast("Any", name), WHERE)


@pytest.mark.parametrize("given", ["queued", "", 3, {"policy": "queue"}, None])
def test_what_is_no_policy_is_refused_with_a_list_of_those_there_are(given: object) -> None:
    """The error names the place, and all eight."""
    with pytest.raises(DeclarationError, match="action 'respond'") as refused:
        as_policy(cast("Any", given), WHERE)
    assert [name for name in POLICIES if f"'{name}'" not in str(refused.value)] == []


def test_a_policy_that_was_not_called_is_refused_with_the_fix() -> None:
    """``concurrency=sf.Queue`` lacks its brackets."""
    with pytest.raises(DeclarationError, match=r"given as a class; call it, as in sf\.Queue"):
        as_policy(cast("Any", sf.Queue), WHERE)


@pytest.mark.parametrize("form", ["session", "user", "tenant"])
@pytest.mark.parametrize("name", MAKE)
def test_every_policy_takes_every_form_of_key(name: str, form: str) -> None:
    """Which requests collide is chosen apart from what happens then."""
    assert MAKE[name](key=form).key == form
    assert callable(MAKE[name](key=lambda arrival: arrival.user).key)


@pytest.mark.parametrize("key", ["sessions", "", "*", None, 3, ("session",)])
@pytest.mark.parametrize("name", MAKE)
def test_an_unknown_form_of_key_is_refused_with_a_list_of_those_there_are(name: str, key: object) -> None:
    """Not at the first request."""
    with pytest.raises(DeclarationError, match="'session', 'user', 'tenant', 'none', or a function"):
        MAKE[name](key=key)


@pytest.mark.parametrize("name", ["debounce", "restart", "batch", "join", "latest"])
def test_a_policy_that_means_nothing_without_a_key_refuses_to_have_none(name: str) -> None:
    """There would be nothing to collapse, restart or share, and ``Allow`` says so better."""
    with pytest.raises(DeclarationError, match=r"without a key there is no.*use sf\.Allow"):
        MAKE[name](key="none")


@pytest.mark.parametrize("name", ["queue", "reject"])
def test_queue_and_reject_may_have_no_key(name: str) -> None:
    """Then nothing is arbitrated, as with ``Allow``."""
    assert MAKE[name](key="none").key == "none"


@pytest.mark.parametrize(
    ("key", "problem"), [(slow_key, "async"), (lambda: "x", "one argument"), (lambda _a, _b: "x", "one argument")]
)
def test_a_function_that_cannot_give_a_key_is_refused(key: Any, problem: str) -> None:
    """It has to be a plain function of the arrival."""
    with pytest.raises(DeclarationError, match=problem):
        sf.Queue(key=key)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sf.Queue(max_waiting=0),
        lambda: sf.Queue(max_waiting=10_001),
        lambda: sf.Queue(max_waiting=cast("Any", True)),
        lambda: sf.Queue(max_waiting=cast("Any", 1.5)),
        lambda: sf.Batch(0, "1s"),
        lambda: sf.Batch(cast("Any", "10"), "1s"),
        lambda: sf.Debounce("5s", max_wait="1s"),
        lambda: sf.Debounce("5s", edge=cast("Any", "both")),
        lambda: sf.Debounce("5s", collapse=cast("Any", "first")),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(make: Callable[[], Policy]) -> None:
    """Sizes are whole numbers in their limits, and choices are among those there are."""
    with pytest.raises(DeclarationError):
        make()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: sf.Queue(timeout="soon"), "timeout of Queue"),
        (lambda: sf.Queue(timeout=0), "timeout of Queue"),
        (lambda: sf.Debounce(0), "window of Debounce"),
        (lambda: sf.Debounce("1s", max_wait="-1s"), "max_wait of Debounce"),
        (lambda: sf.Batch(10, "month"), "window of Batch"),
        (lambda: sf.Restart(grace=-1), "grace of Restart"),
    ],
)
def test_a_length_of_time_that_makes_no_sense_is_refused(make: Callable[[], Policy], what: str) -> None:
    """The error says which one."""
    with pytest.raises(InvalidArgumentError, match=what):
        make()


def test_a_wait_without_end_and_no_grace_at_all_can_be_chosen() -> None:
    """``timeout=None`` waits as long as it takes, and ``grace=0`` revokes at once."""
    assert sf.Queue(timeout=None).timeout is None
    assert sf.Restart(grace=0).grace == 0


def test_some_policies_answer_before_anything_has_run() -> None:
    """Those three policies make their requests durable, and no other does."""
    assert {name for name, kind in POLICIES.items() if kind.answers_first} == {"debounce", "batch", "latest"}
