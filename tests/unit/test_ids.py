"""Ids: unique, ordered by time, and safe to make anywhere."""

from __future__ import annotations

import os
import random
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from standfast import ids
from standfast.ids import IdMaker, new_id, repeatable_ids
from standfast.testing import VirtualClock


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    """Other tools can read an id, and the time in it."""
    clock = VirtualClock()
    made = uuid.UUID(IdMaker(clock)())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == clock.wall() // 1_000


def test_ids_increase_as_text() -> None:
    """Ids of one maker sort in the order they were made in."""
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_increase_when_the_clock_stands_still_or_goes_back() -> None:
    """A stopped or stepped clock neither repeats nor reverses ids."""
    clock = VirtualClock()
    make = IdMaker(clock)
    made = [make() for _ in range(5_000)]
    clock.step_wall(-3_600)
    made += [make() for _ in range(100)]
    assert made == sorted(set(made))


def test_ids_within_one_millisecond_are_ordered_by_the_microsecond() -> None:
    """Two makers on one clock agree on the order of what is a few microseconds apart."""
    clock = VirtualClock()
    first = IdMaker(clock)()
    clock.advance(0.000_005)
    assert first < IdMaker(clock)()


def test_the_same_randomness_gives_the_same_ids() -> None:
    """A simulation that hands in clock and randomness is repeatable."""
    first, second = (IdMaker(VirtualClock(), random.Random(7).randbytes) for _ in range(2))
    assert [first() for _ in range(5)] == [second() for _ in range(5)]


def test_sixty_two_bits_are_random() -> None:
    """Every bit after the time and the version is used."""
    tails = [uuid.UUID(new_id()).int & (2**62 - 1) for _ in range(500)]
    ones = [sum(tail >> bit & 1 for tail in tails) for bit in range(62)]
    assert all(100 < count < 400 for count in ones)


def test_threads_share_a_maker() -> None:
    """Ids made by several threads at once are all different, and increase for each of them."""

    def make_many(_: int) -> list[str]:
        return [new_id() for _ in range(2_000)]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make_many, range(4)))
    assert all(each == sorted(each) for each in made)
    assert len(set().union(*made)) == 8_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forking is what is tested
def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    """A fork copies the maker's state, but not its randomness, nor a lock that somebody holds."""
    reader, writer = os.pipe()
    new_id()
    with ids._lock:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # a child that waits for the lock for ever must not outlive the test
            os.write(writer, new_id().encode())
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as pipe:  # noqa: PTH123 -- a descriptor has no path
        made = pipe.read()
    os.waitpid(child, 0)
    own = new_id()
    assert len(made) == len(own)
    assert made[-12:] != own[-12:]


def test_ids_of_a_simulation_repeat_and_those_after_it_do_not() -> None:
    """The same seed makes the same ids, whatever was made before; outside they are the system's again."""
    before = new_id()
    made = list[list[str]]()
    for seed in (7, 7, 8):
        with repeatable_ids(seed):
            made.append([new_id(), new_id.long(), new_id()])
        new_id.long()

    assert made[0] == made[1] != made[2]
    assert made[0][0] < made[0][2]
    assert before < new_id() < made[0][0]
