"""Keys of requests: which requests collide, and that no others ever do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.errors import FlowError, InvalidInputError, RequestKeyError
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import Ask, queue_rules_of
from standfast.flows.request import address_of, label_of
from standfast.keys import encode_parts

if TYPE_CHECKING:
    from standfast.flows.request import Address

FORMS = ("session", "user", "tenant", "custom")
# Few and alike, so that what could collide is tried: the words of addresses, separators, wildcards.
TEXTS = st.sampled_from(["a", "b", "ab", "a:b", "a/b", "*", "session", "user", "tenant", "custom", "request", "a b"])
PEOPLE = st.builds(sf.Principal, tenant=TEXTS, user=TEXTS)
ARRIVALS = st.builds(
    sf.Call, flow=st.sampled_from(["chat", "session"]), action=st.just("go"), principal=PEOPLE, session=TEXTS
)


def arrival(**facts: Any) -> sf.Call:
    """Return what arrives for one action."""
    return sf.Call(flow="chat", action="respond", **facts)


def address(form: str, of: sf.Call, value: str) -> Address:
    """Return the address for one form of key."""
    found = address_of(sf.Queue(key=cast("Any", (lambda _: value) if form == "custom" else form)), of)
    assert found is not None
    return found


def identity(form: str, of: sf.Call, value: str) -> tuple[str, ...]:
    """Return what makes a key what it is."""
    own = {"session": (of.session,), "user": (of.user,), "tenant": (), "custom": (of.flow, value)}
    return (of.tenant, form, *own[form])


@given(st.tuples(st.sampled_from(FORMS), ARRIVALS, TEXTS), st.tuples(st.sampled_from(FORMS), ARRIVALS, TEXTS))
def test_two_keys_share_an_address_if_and_only_if_they_are_the_same(
    one: tuple[str, sf.Call, str], other: tuple[str, sf.Call, str]
) -> None:
    """Not those of two tenants, of two forms, of two flows, or of two ids; nor does one begin like another."""
    first, second = encode_parts(address(*one)), encode_parts(address(*other))

    assert (first == second) == (identity(*one) == identity(*other))
    assert first == second or not (first.startswith(second) or second.startswith(first))


def test_a_session_is_one_key_in_all_flows() -> None:
    """Two actions of one conversation contend, whichever flows they belong to."""
    asked = sf.Call(flow="chat", action="respond", session="s-1")
    filed = sf.Call(flow="tickets", action="close", session="s-1")
    assert address_of(sf.Queue(), asked) == address_of(sf.Reject(), filed)


def test_a_function_makes_keys_of_its_own_flow() -> None:
    """What two flows call by one name are two things."""
    one = address_of(sf.Queue(key=lambda _: "7"), sf.Call(flow="orders", action="ship"))
    assert one == ("request", "default", "custom", "orders", "7")
    assert one != address_of(sf.Queue(key=lambda _: "7"), sf.Call(flow="invoices", action="ship"))


@pytest.mark.parametrize(
    "policy", [sf.Queue(), sf.Queue(key="user"), sf.Queue(key="none"), sf.Queue(key=lambda _: None), sf.Allow()]
)
def test_without_a_key_nothing_is_arbitrated(policy: sf.Queue | sf.Allow) -> None:
    """No session, no user, no form, or a function that says None."""
    assert address_of(policy, arrival()) is None


def test_a_function_sees_the_inputs_that_were_checked() -> None:
    """Not the bytes that came from the caller."""
    policy = sf.Queue(key=lambda arrival: cast("dict[str, str]", arrival.inputs)["document"])
    found = address_of(policy, arrival(inputs=b"..."), {"document": "d-7"})
    assert found == ("request", "default", "custom", "chat", "d-7")


def test_an_asterisk_is_a_character_like_any_other() -> None:
    """It stands for nothing else."""
    assert address_of(sf.Queue(key=lambda _: "*"), arrival()) != address_of(sf.Queue(key=lambda _: "a"), arrival())
    assert address_of(sf.Queue(), arrival(session="*")) == ("request", "default", "session", "*")


@pytest.mark.parametrize("value", ["", "\x00", "a\nb", "\x1b[2J", "x" * 201, "ä" * 101, "\ud800"])
def test_text_that_cannot_be_a_key_is_refused_and_not_shown(value: str) -> None:
    """Empty, control characters, too long, half a surrogate pair; the error names the action."""
    with pytest.raises(InvalidInputError, match="flow 'chat', action 'respond'") as refused:
        address_of(sf.Queue(key=lambda _: value), arrival())
    assert not value or value not in str(refused.value)


@pytest.mark.parametrize("value", [0, 7, b"x", True, ("a",)])
def test_what_is_no_text_is_no_key(value: object) -> None:
    """Not even if it could be made into text: 7 and "7" would be one key by accident."""
    with pytest.raises(RequestKeyError, match=f"action 'respond'.*returned a {type(value).__name__}"):
        address_of(sf.Queue(key=lambda _: cast("Any", value)), arrival())


def test_what_a_key_function_raises_is_the_cause() -> None:
    """The error names the action, and is not taken for something that the caller did."""
    with pytest.raises(RequestKeyError, match="raised KeyError") as refused:
        address_of(sf.Queue(key=lambda arrival: arrival.metadata["missing"]), arrival())
    assert isinstance(refused.value.__cause__, KeyError)
    assert refused.value.status == 500


def test_a_key_is_plain_text() -> None:
    """What compares in a way of its own does not get into an address."""
    color = StrEnum("color", {"RED": "red"})
    found = address_of(sf.Queue(key=lambda _: color.RED), arrival())
    assert found is not None
    assert type(found[-1]) is str


@pytest.mark.parametrize(
    ("form", "words"),
    [("session", "session 's'"), ("user", "user 'u'"), ("tenant", "tenant"), ("custom", "key 'v' of chat")],
)
def test_a_key_in_words_does_not_name_the_tenant(form: str, words: str) -> None:
    """Refusals show what collided, and nothing of who else there is."""
    of = arrival(principal=sf.Principal("acme", "u"), session="s")
    assert label_of(address(form, of, "v")) == words


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (sf.Queue(), "session s-1 of tenant acme"),
        (sf.Queue(key="user"), "user ann of tenant acme"),
        (sf.Queue(key="tenant"), "tenant acme"),
        (sf.Queue(key=lambda _: "case 7"), "key case 7 of chat of tenant acme"),
    ],
)
async def test_whoever_lists_lines_reads_whose_requests_stand_in_them(policy: sf.Queue, words: str) -> None:
    """Operators see all tenants, so theirs is named as well."""
    address = address_of(policy, arrival(principal=sf.Principal("acme", "ann"), session="s-1"))
    assert address is not None
    async with sf.open("memory://") as space, SharedArbiter(space) as arbiter:
        asked = Ask(id="r1", address=address, action="chat.respond", rules=queue_rules_of(policy))
        async with arbiter.hold(asked):
            assert [line.key async for line in space.lines()] == [words]


@pytest.mark.parametrize(
    "make",
    [
        lambda text: sf.Principal(tenant=text),
        lambda text: sf.Principal(user=text),
        lambda text: arrival(session=text),
        lambda text: arrival(idempotency_key=text),
    ],
)
@pytest.mark.parametrize("text", ["a\x00b", "\n", "x" * 201, 7])
def test_ids_that_could_not_be_part_of_a_key_are_refused_at_the_door(make: Any, text: object) -> None:
    """Whatever a transport says, before anything is done with it; and the text is not shown."""
    with pytest.raises(InvalidInputError) as refused:
        make(text)
    assert str(text) not in str(refused.value)


def test_a_tenant_has_a_name() -> None:
    """Data without an owner would be everybody's."""
    with pytest.raises(InvalidInputError, match="the tenant: it is empty"):
        sf.Principal(tenant="")


def test_every_refusal_has_a_status() -> None:
    """A transport can answer each of them."""
    assert [kind for kind in FlowError.__subclasses__() if kind.status not in range(400, 600)] == []
