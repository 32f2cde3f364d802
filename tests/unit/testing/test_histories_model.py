"""The pure model of a store predicts what the contract says."""

from __future__ import annotations

import pytest

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, Put, Record, Snapshot
from standfast.testing import StoreModel

A, B = RecordKey("model", "a"), RecordKey("model", "b")
AT = Instant(1_000)


def commit(at: int = AT, **versions: int) -> Commit:
    """Return an answer of a store."""
    return Commit(Instant(at), {{"a": A, "b": B}[name]: version for name, version in versions.items()})


def with_a(expires_at: Instant | None = None) -> StoreModel:
    """Return a model that holds a record at A, at version 5."""
    model, answer = StoreModel().commit([Put(A, b"1", 0, expires_at)], like=commit(a=5))
    assert answer == commit(a=5)
    return model


def test_a_put_takes_the_version_that_the_store_chose() -> None:
    """Gaps are the store's business."""
    assert with_a().read([A], at=AT).records == {A: Record(A, b"1", 5)}


@pytest.mark.parametrize("version", [5, 4, 0, 2**53])
def test_a_version_that_does_not_grow_is_not_accepted(version: int) -> None:
    """The prediction then differs from the answer: versions grow, also over a delete, and stay below 2**53."""
    deleted, _ = with_a().commit([Delete(A, 5)], like=commit())
    _, predicted = deleted.commit([Put(A, b"2")], like=commit(a=version))
    assert predicted != commit(a=version)


def test_a_guard_that_fails_is_predicted_with_its_record() -> None:
    """All failing guards, none that hold, and nothing is written."""
    model = with_a()
    after, predicted = model.commit([Put(A, b"2"), Put(B, b"2", 7), Check(A, 5)], like=Conflict(AT, {}))
    assert predicted == Conflict(AT, {A: Record(A, b"1", 5), B: None})
    assert after == model


@pytest.mark.parametrize(("window", "happens"), [((1_000, None), True), ((1_001, None), False), ((None, 1_000), False)])
def test_a_window_is_judged_by_the_time_of_the_answer(window: tuple[int | None, int | None], happens: bool) -> None:  # noqa: FBT001 -- a parameter
    """``after`` is inclusive and ``before`` exclusive."""
    after, before = (None if edge is None else Instant(edge) for edge in window)
    _, predicted = StoreModel().commit([Put(A, b"")], like=commit(a=1), after=after, before=before)
    assert isinstance(predicted, Commit) == happens


@pytest.mark.parametrize(("at", "there"), [(1_999, True), (2_000, False), (2_001, False)])
def test_a_record_is_absent_from_its_expiry_on(at: int, there: bool) -> None:  # noqa: FBT001 -- a parameter
    """To reads, scans and guards alike."""
    model, moment = with_a(Instant(2_000)), Instant(at)
    assert (A in model.read([A], at=moment).records) == there
    assert (A in model.scan(*RecordKey("model").within(), limit=1, at=moment).records) == there
    _, predicted = model.commit([Check(A, 5)], like=commit(at))
    assert isinstance(predicted, Commit) == there


def test_an_update_decides_on_what_the_model_holds() -> None:
    """The decision is run on the predicted snapshot."""

    def decide(seen: Snapshot) -> Decision[bytes]:
        return Decision(seen.records[A].value, (Put(A, b"2", seen.version(A)), Put(B, b"3")))

    like = Decided(b"1", AT, {A: 6, B: 9})
    model, predicted = with_a().update([A, B], decide, like=like)
    assert predicted == like
    assert [record.value for record in model.read([A, B], at=AT).records.values()] == [b"2", b"3"]


def test_pages_of_a_scan_are_predicted_in_both_directions() -> None:
    """With where they go on."""
    keys = [RecordKey("model", str(n)) for n in range(5)]
    model, _ = StoreModel().commit([Put(key, b"") for key in keys], like=Commit(AT, dict.fromkeys(keys, 1)))
    bounds = RecordKey("model").within()

    forwards = model.scan(*bounds, limit=2, at=AT)
    backwards = model.scan(*bounds, limit=2, reverse=True, at=AT)

    assert (list(forwards.records), forwards.more) == (keys[:2], keys[1].successor())
    assert (list(backwards.records), backwards.more) == ([keys[4], keys[3]], keys[3])
    assert model.scan(*bounds, limit=5, at=AT).more is None


def test_models_that_hold_the_same_are_equal() -> None:
    """Equal, with equal hashes, whatever way they came about."""
    assert with_a() == with_a()
    assert hash(with_a()) == hash(with_a())
    assert with_a() != StoreModel()
