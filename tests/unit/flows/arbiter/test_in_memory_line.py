"""The line in memory, as a pure thing: compared with a model, and what becomes of newcomers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from standfast.flows.arbiter.in_memory import Enters, JoinsRun, LineFull, MustWait, RequestLine
from standfast.flows.arbiter.protocol import queue_rules_of
from standfast.policies import Join, Latest, Queue, Reject, Restart

if TYPE_CHECKING:
    from standfast.flows.arbiter.protocol import QueueRules

ACTIONS: Final = ("append", "respond")
MANNERS: Final = (
    queue_rules_of(Queue(max_waiting=3)),
    *(queue_rules_of(policy()) for policy in (Reject, Restart, Join, Latest)),
)


@final
class Guest:
    """One that stands in a line."""

    def __init__(self, action: str = "respond") -> None:
        self.action: Final = action


def _line(actions: list[str]) -> tuple[RequestLine[Guest], list[Guest]]:
    line: RequestLine[Guest] = RequestLine()
    guests = [Guest(action) for action in actions]
    for guest in guests:
        line.enter(guest)
    return line, guests


@final
class LineMachine(RuleBasedStateMachine):
    """A line does what a list does whose first one has its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.line: RequestLine[Guest] = RequestLine()
        self.model: list[Guest] = []
        self.gone: list[Guest] = []

    @rule(action=st.sampled_from(ACTIONS))
    def enter(self, action: str) -> None:
        """A newcomer goes to the back."""
        guest = Guest(action)
        self.model.append(guest)
        assert self.line.enter(guest) == len(self.model) - 1

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Whoever leaves from the front hands its turn to the next; nobody else's leaving gives one."""
        place = data.draw(st.integers(0, len(self.model) - 1))
        guest = self.model.pop(place)
        self.gone.append(guest)
        follower = self.model[0] if place == 0 and self.model else None
        assert self.line.leave(guest) is follower

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def leave_again(self, data: st.DataObject) -> None:
        """One that is gone frees nobody's place."""
        assert self.line.leave(data.draw(st.sampled_from(self.gone))) is None

    @invariant()
    def is_as_the_model(self) -> None:
        """The same ones stand in the same order, and somebody has its turn whenever anybody is there."""
        assert [*([] if self.line.holder is None else [self.line.holder]), *self.line.waiters] == self.model
        assert self.line.is_empty == (not self.model)
        assert [self.line.position(each) for each in self.model] == list(range(len(self.model)))
        assert all(self.line.position(each) is None for each in self.gone)


TestLine = LineMachine.TestCase
TestLine.settings = settings(stateful_step_count=20)


@given(st.lists(st.sampled_from(ACTIONS), max_size=6), st.sampled_from(MANNERS), st.sampled_from(ACTIONS))
def test_a_verdict_changes_nothing_and_an_empty_line_admits_everybody(
    actions: list[str], rules: QueueRules, action: str
) -> None:
    """Whatever the policy, only collisions are arbitrated."""
    line, guests = _line(actions)
    verdict = line.judge(action, rules)
    assert [line.position(each) for each in guests] == list(range(len(guests)))
    assert guests or verdict == Enters()


@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=6), st.sampled_from(MANNERS), st.sampled_from(ACTIONS))
def test_nobody_but_requests_of_the_same_action_is_joined_or_superseded(
    actions: list[str], rules: QueueRules, action: str
) -> None:
    """Requests of other actions keep their places."""
    line, guests = _line(actions)
    verdict = line.judge(action, rules)
    if isinstance(verdict, JoinsRun):
        assert verdict.other is next(each for each in guests if each.action == action)
    if isinstance(verdict, Enters):
        alike = [each for each in guests if each.action == action]
        whom = {"none": [], "waiting": [each for each in alike if each is not line.holder], "all": alike}
        assert list(verdict.superseded) == whom[rules.supersedes]


@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=6))
def test_a_policy_that_does_not_wait_is_refused_by_whoever_has_its_turn(actions: list[str]) -> None:
    """Also if others wait."""
    line, guests = _line(actions)
    assert line.judge("respond", queue_rules_of(Reject())) == MustWait(guests[0])


@given(st.integers(0, 6), st.integers(1, 4))
def test_a_queue_is_full_exactly_when_as_many_wait_as_may(waiting: int, most: int) -> None:
    """The one that runs does not count."""
    line, _ = _line(["respond"] * (waiting + 1))
    verdict = line.judge("respond", queue_rules_of(Queue(max_waiting=most)))
    assert verdict == (LineFull(waiting) if waiting >= most else Enters())


@given(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=6))
def test_a_join_waits_only_where_there_is_nobody_to_join(actions: list[str]) -> None:
    """Of the same action there is never more than one in the line."""
    line, _ = _line(actions)
    verdict = line.judge("respond", queue_rules_of(Join()))
    assert isinstance(verdict, JoinsRun) == ("respond" in actions)
