"""Trace contexts: what others send is taken if it is well-formed, and nothing else of it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from standfast.trace_context import FIRST_SPAN, NO_SPAN, RunTrace, id_of, ids_of, read_headers, read_stored

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PLACE = ("prod", "acme", "order-7", 1)


def test_a_context_is_read_as_it_was_written() -> None:
    """Both headers, in one text that is stored with the run."""
    found = read_headers(PARENT, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert found is not None
    assert (found.traceparent, found.is_sampled) == (PARENT, True)
    assert read_stored(found.stored) == found


@given(
    st.text() | st.from_regex(re.compile(r"[0-9a-f]{2}-[0-9a-f]{30,34}-[0-9a-f]{14,18}-[0-9a-f]{2}.{0,3}")), st.text()
)
def test_whatever_is_sent_is_read_or_left_out(parent: str, state: str) -> None:
    """Nothing of it raises, and what is read can be stored and sent on."""
    found = read_headers(parent, state)
    if found is not None:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", found.traceparent)
        assert found.stored.isascii()
        assert found.stored.isprintable()
        assert read_stored(found.stored) == found
    read_stored(parent)
    assert RunTrace(PLACE, parent).trace_id


def test_ids_follow_from_the_run_and_from_nothing_else() -> None:
    """Two runs share none, nor do two operations of one."""
    first = RunTrace(PLACE)
    assert first.trace_id == RunTrace(PLACE).trace_id
    assert first.span("step", "charge", 1) == RunTrace(PLACE).span("step", "charge", 1)
    others = [RunTrace((*PLACE[:3], 2)), RunTrace(("prod", "acme", "order", 1)), RunTrace(("test", *PLACE[1:]))]
    spans = {each.span("step", "charge", 1) for each in (first, *others)}
    assert len(spans | {first.span("step", "charge", 2), first.span("step", "refund", 1), first.run_span}) == 7
    assert len({each.trace_id for each in (first, *others)}) == 4


def test_the_ids_of_runs_stay_as_they_are() -> None:
    """A run may be taken over by a worker of a newer version, whose spans must have the parents that are exported."""
    own, below = RunTrace(PLACE), RunTrace(PLACE, PARENT)
    assert (own.trace_id, below.trace_id) == (0x601A5B92D912DCB51F398F13507641C1, int(PARENT[3:35], 16))
    for trace in (own, below):
        assert trace.run_span == 0xE11EE873B86FC035
        assert trace.span("start") == 0xF3E2BD66FA47B1E8
        assert trace.span("step", "charge", 1) == 0x79D64C17EB4E3AC4
        assert trace.span("claim", number=2) == 0x485BBEDDFA53C964


class Zero:
    """A digest that comes to zero, which no span may have as its id."""

    def copy(self) -> Zero:
        """Return this one."""
        return self

    def update(self, data: bytes) -> None:
        """Do nothing."""

    def digest(self) -> bytes:
        """Return zero."""
        return NO_SPAN


def test_ids_of_many_runs_are_those_of_each() -> None:
    """And none is zero."""
    runs = [Zero(), *(RunTrace(("main", "", f"r-{number}", 0)).packed[0] for number in range(3)), Zero()]

    assert ids_of(runs, b"step") == [id_of(each, b"step") for each in runs]
    assert ids_of(runs, b"step")[0] == FIRST_SPAN
    assert len(set(ids_of(runs, b"step"))) == 4
