"""What must be true of requests of flows when all of them have ended: nothing is lost, doubled or left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from tests.simulation.flow_stage import COLLECTING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.flows.records import RequestRecord
    from tests.simulation.flow_letters import Letter, Sending
    from tests.simulation.flow_watch import FlowWatch


def check_ends(watch: FlowWatch, letters: Iterable[Letter]) -> None:
    """Look at every request, at every letter and at every tick."""
    for request_id in watch.sendings:
        if request_id in watch.records:
            _check_request(watch, request_id, watch.records[request_id])
    for letter in letters:
        _check_letter(watch, letter)
    for request_id, record in watch.records.items():
        if record.action == "ticked":
            _check_tick(watch, request_id, record)


def result_of(record: RequestRecord) -> Any:
    """Return what a request came to; nothing if not well."""
    return None if record.result is UNSET else msgspec.json.decode(record.result)


def _check_request(watch: FlowWatch, request_id: str, record: RequestRecord) -> None:
    status = record.status
    watch.demand(record.has_ended, f"end: {request_id} ({record.action}) was taken on and is {status} for ever")
    why = f"{status} for no reason ({record.reason or record.failure})"
    watch.demand(watch.may_end(request_id, status), f"end: {request_id} ({record.action}) ended {why}")
    if status == "superseded":
        _check_successor(watch, request_id, record)
    if status == "completed":
        for letter, sending in watch.sendings[request_id]:
            told = sending.told in ("", "completed") or letter.name in watch.abandoned
            watch.demand(told, f"end: {request_id} has completed, and its caller was told {sending.told}")
        if record.action in COLLECTING:
            _check_burst(watch, request_id, result_of(record))


def _check_successor(watch: FlowWatch, request_id: str, record: RequestRecord) -> None:
    """Whoever took a place is of the same action and session, and did not come earlier."""
    others, mine = watch.sendings.get(record.by), watch.sendings[request_id]
    newer = others[0][0] if others else watch.records.get(record.by)
    if newer is None and watch.has_unwritten:  # it was taken on, died with its server, and nobody has heard its id
        return
    is_alike = newer is not None and (newer.action, newer.session) == (record.action, record.session)
    watch.demand(is_alike and record.by != request_id, f"successor: {request_id} was superseded by {record.by!r}")
    was_earlier = watch.written.get(record.by, watch.written[request_id]) < watch.written[request_id]
    was_known = others and max(each.answered for _, each in others) < min(each.sent for _, each in mine)
    is_older = was_earlier or was_known
    watch.demand(not is_older, f"successor: {request_id} was superseded by {record.by}, which is older")


def _check_burst(watch: FlowWatch, request_id: str, names: list[str]) -> None:
    """Everything that was collected is in its run; if only the last counts, nothing that came after it is lost."""
    sent = watch.sendings[request_id]
    if sent[0][0].action != "debounced":
        lost = {letter.name for letter, _ in sent} - set(names)
        watch.demand(not lost, f"burst: {sorted(lost)} were taken on with {request_id}, and lost")
        return
    last = max((sending for letter, sending in sent if letter.name in names), key=_answered, default=None)
    if last is not None:
        # An answer that is told again says nothing about when its letter came.
        once = [(letter.name, sending) for letter, sending in sent if len(letter.sendings) == 1]
        later = [name for name, sending in once if sending.sent > last.answered]
        watch.demand(not later, f"burst: {later} came after {names}, and were lost")


def _answered(sending: Sending) -> int:
    return sending.answered


def _check_letter(watch: FlowWatch, letter: Letter) -> None:
    """What a letter asks for is done at most once; if somebody heard so, once; and not if all heard otherwise."""
    count = watch.names_in(letter.session).count(letter.name)
    watch.demand(count <= 1, f"once: {letter.name} ({letter.action}) was done {count} times")
    known = [watch.records.get(each.id) for each in letter.sendings if each.id]
    done = [each for each in known if each is not None and letter.name in (result_of(each) or ())]
    told = [each for each in letter.sendings if each.told == "completed" and letter.name in each.value]
    watch.demand(count or not (done or told), f"lost: {letter.name} ({letter.action}) was completed, and left nothing")
    if count and not done and not told:
        certain = all(each.id and (each.id in watch.records or each.told) for each in letter.sendings)
        watch.demand(not certain, f"dropped: {letter.name} ({letter.action}) has no result, and left something")


def _check_tick(watch: FlowWatch, request_id: str, record: RequestRecord) -> None:
    count = watch.names_in(record.session).count(request_id)
    is_done = record.status == "completed"
    watch.demand(record.has_ended, f"tick: {request_id} is {record.status} for ever")
    watch.demand(count == int(is_done), f"tick: {request_id} ended {record.status}, and was done {count} times")
    may_stop = watch.overlap in ("restart", "queue")
    watch.demand(is_done or may_stop, f"tick: {request_id} ended {record.status} for no reason ({record.failure})")
