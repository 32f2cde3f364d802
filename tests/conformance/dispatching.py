"""What every dispatcher promises, alone or as one of two servers on one store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import pytest

import holdfast as hf
from holdfast.errors import (
    ArbiterUnavailableError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestFailedError,
    RequestNotFoundError,
    RequestRejectedError,
    RequestSupersededError,
    WaitsForItselfError,
)
from holdfast.flows.dispatch import Dispatcher
from holdfast.flows.records import SESSIONS, session_key
from tests.conformance.dispatch_stage import ANN, SOON, Stage, arrival, result

if TYPE_CHECKING:
    from holdfast.flows.handle import Handle
    from holdfast.flows.request import Event

Pair: TypeAlias = tuple[Dispatcher, Dispatcher]

DURABLE = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])


class DispatchContract:
    """The promises of the seam; a subclass provides ``pair``: two dispatchers, or the same one twice."""

    @pytest.fixture
    def stage(self) -> Stage:
        """What the actions do."""
        return Stage()

    # --- turns ---------------------------------------------------------------------------------------------------

    async def test_requests_of_one_key_run_one_at_a_time_in_order_whatever_they_are(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Attended and durable ones, by either server, stand in one line."""
        stage.hold("0")
        handles = [await pair[n % 2].dispatch(arrival("queued", str(n), durable=n % 3 == 1)) for n in range(4)]
        stage.release("0")

        assert [await result(each) for each in handles] == ["did 0", "did 1", "did 2", "did 3"]
        assert (stage.begun, stage.most) == (["0", "1", "2", "3"], 1)

    async def test_requests_without_a_key_run_side_by_side(self, pair: Pair, stage: Stage) -> None:
        """Nothing is arbitrated without a session."""
        stage.hold("a", "b")
        handles = [await pair[0].dispatch(arrival("queued", name, session="")) for name in "ab"]
        await stage.until_begun("b")
        stage.release("a", "b")

        assert [await result(each) for each in handles] == ["did a", "did b"]
        assert stage.most == 2

    @DURABLE
    async def test_a_request_that_waits_tells_for_whom_and_its_place(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """The handle is there at once, with who has the key and how many are before."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        await pair[0].dispatch(arrival("queued", "b"))
        third = await pair[1].dispatch(arrival("queued", "c", durable=durable))
        why = (await third.info()).explanation

        assert (third.status, third.position) == ("waiting", 1)
        assert why is not None
        assert (why.holder, why.position, why.key) == (first.id, 1, "session 's-1'")
        stage.release("a")
        await result(third)

    @DURABLE
    async def test_a_request_that_is_rejected_names_the_holder_and_leaves_nothing(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """While one has the key, another is refused with its id; when it has ended, the next is taken on."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("rejected", "a"))
        with pytest.raises(RequestRejectedError) as refused:
            await pair[1].dispatch(arrival("rejected", "b", durable=durable))
        stage.release("a")

        assert refused.value.request_id == first.id
        assert await result(first) == "did a"
        assert await result(await pair[1].dispatch(arrival("rejected", "c", durable=durable))) == "did c"

    @DURABLE
    async def test_whoever_is_rejected_while_the_holder_ends_gets_an_id_that_can_be_asked_about(
        self, pair: Pair, *, durable: bool
    ) -> None:
        """Nobody is told of a request that is not there; when that one has ended, trying again succeeds."""
        async with asyncio.timeout(SOON):
            for number in range(10):
                handles = [await pair[0].dispatch(arrival("rejected", str(number), durable=durable))]
                while len(handles) < 2:
                    try:
                        handles.append(await pair[1].dispatch(arrival("rejected", "again", durable=durable)))
                    except RequestRejectedError as refused:
                        assert (await pair[1].info(ANN, refused.request_id)).id == handles[0].id  # noqa: PT017 -- as often as it is
                        await asyncio.sleep(0.001)
                for each in handles:
                    await result(each)
                    await until_free(pair[0])

    @DURABLE
    async def test_a_queue_that_is_full_refuses_the_next(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """As many wait as may; the next one is told how many and when to come again."""
        stage.hold("0")
        handles = [await pair[0].dispatch(arrival("queued", str(n))) for n in range(4)]
        with pytest.raises(QueueFullError) as full:
            await pair[1].dispatch(arrival("queued", "late", durable=durable))
        stage.release("0")

        assert (full.value.waiting, full.value.retry_after >= 1) == (3, True)
        assert [await result(each) for each in handles] == ["did 0", "did 1", "did 2", "did 3"]

    @DURABLE
    async def test_a_turn_that_does_not_come_in_time_is_told_and_written_down(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """It never runs, and whoever asks later learns why."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        late = await pair[0].dispatch(arrival("hasty", "late", durable=durable))
        with pytest.raises(QueueTimeoutError):
            await result(late)
        stage.release("a")

        info = await (await pair[1].find(ANN, late.id)).info()
        assert (info.status, info.error_type, info.error_status) == ("refused", "QueueTimeoutError", 503)
        assert await result(first) == "did a"
        assert "late" not in stage.begun

    @DURABLE
    async def test_requests_that_join_share_one_run(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """They have the id and the result of the one in flight; their inputs are not used."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("joined", "a", durable=durable))
        await stage.until_begun("a")
        second = await pair[1].dispatch(arrival("joined", "b", durable=durable))
        stage.release("a")

        assert (second.id, second.is_new) == (first.id, False)
        assert [await result(first), await result(second)] == ["did a", "did a"]
        assert stage.begun == ["a"]

    @DURABLE
    async def test_the_newest_request_takes_the_place_of_the_one_that_runs(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """The old one ends superseded and keeps nothing; the new one sees what both brought."""
        stage.hold("old")
        old = await pair[0].dispatch(arrival("restarted", "old", durable=durable))
        await stage.until_begun("old")
        new = await pair[1].dispatch(arrival("restarted", "new", durable=durable))

        assert await result(new) == "did new"
        with pytest.raises(RequestSupersededError) as told:
            await result(old)
        assert told.value.by == new.id
        assert [each["name"] for each in stage.seen["new"]] == ["old", "new"]
        assert await names_of(pair[0]) == ["new"]

    async def test_of_those_that_wait_only_the_latest_is_run(self, pair: Pair, stage: Stage) -> None:
        """The one that runs is finished; those between end superseded."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("latest", "a"))
        await stage.until_begun("a")
        between = await pair[1].dispatch(arrival("latest", "b"))
        last = await pair[0].dispatch(arrival("latest", "c"))
        with pytest.raises(RequestSupersededError) as told:
            await result(between)
        stage.release("a")

        assert [await result(first), await result(last)] == ["did a", "did c"]
        assert (stage.begun, told.value.by) == (["a", "c"], last.id)

    # --- bursts --------------------------------------------------------------------------------------------------

    async def test_a_burst_is_one_run_with_the_last_input(self, pair: Pair, stage: Stage) -> None:
        """All its requests have one id and one result, and nothing of it is lost."""
        handles = [await pair[n % 2].dispatch(arrival("debounced", str(n))) for n in range(5)]
        results = [await result(each) for each in handles]

        assert {each.id for each in handles} == {handles[0].id}
        assert [each.is_new for each in handles] == [True, False, False, False, False]
        assert (results, stage.begun) == (["did 4"] * 5, ["4"])
        assert [each["name"] for each in stage.seen["4"]] == ["0", "1", "2", "3", "4"]

    async def test_what_comes_while_a_burst_runs_causes_one_later_run(self, pair: Pair, stage: Stage) -> None:
        """It is neither lost nor does it stop the run."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("debounced", "a"))
        await stage.until_begun("a")
        later = [await pair[1].dispatch(arrival("debounced", name)) for name in "bc"]
        stage.release("a")

        assert await result(first) == "did a"
        assert [await result(each) for each in later] == ["did c", "did c"]
        assert (stage.begun, stage.most) == (["a", "c"], 1)

    async def test_a_burst_that_waits_for_its_turn_still_collects(self, pair: Pair, stage: Stage) -> None:
        """While another action has the key, requests that come belong to the run that waits."""
        stage.hold("other")
        other = await pair[0].dispatch(arrival("queued", "other"))
        burst = await pair[0].dispatch(arrival("debounced", "a"))
        await until_one_waits(pair[0])
        more = await pair[1].dispatch(arrival("debounced", "b"))
        stage.release("other")

        # With lines in memory the run is taken up before it has its turn, and what comes then is for the next.
        first = "did b" if pair[0] is not pair[1] else "did a"
        assert (await result(other), await result(burst), await result(more)) == ("did other", first, "did b")

    async def test_endless_requests_do_not_put_a_burst_off_for_ever(self, pair: Pair, stage: Stage) -> None:
        """It is run when its first request has waited long enough."""
        async with asyncio.timeout(SOON):
            number = 0
            while not stage.begun:
                await pair[0].dispatch(arrival("capped", str(number)))
                number += 1
                await asyncio.sleep(0.02)

        assert int(stage.begun[0]) < number

    async def test_with_the_leading_edge_the_first_runs_at_once_and_the_rest_after_it(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Two runs for a burst: the first request, and the last."""
        handles = [await pair[0].dispatch(arrival("leading", name)) for name in "abc"]

        assert [await result(each) for each in handles] == ["did a", "did c", "did c"]
        assert stage.begun == ["a", "c"]

    async def test_an_old_event_that_comes_late_does_not_replace_a_newer_one(self, pair: Pair, stage: Stage) -> None:
        """The order of events is that of their own times, if those are known."""
        times = {"new": "2026-05-01T12:00:05Z", "old": "2026-05-01T12:00:01Z"}
        sent = [arrival("debounced", name, metadata={"event_time": at}) for name, at in times.items()]
        handles = [await pair[0].dispatch(each) for each in sent]

        assert await result(handles[-1]) == "did new"
        assert [each["name"] for each in stage.seen["new"]] == ["old", "new"]

    async def test_an_old_event_that_comes_after_a_newer_one_was_run_is_not_run(self, pair: Pair, stage: Stage) -> None:
        """Its own burst is superseded by the run that was newer; one that is newer still is run."""
        times = {"new": "2026-05-01T12:00:05Z", "old": "2026-05-01T12:00:01Z", "newest": "2026-05-01T12:00:09Z"}
        sent = {name: arrival("capped", name, metadata={"event_time": at}) for name, at in times.items()}
        new = await pair[0].dispatch(sent["new"])
        assert await result(new) == "did new"
        with pytest.raises(RequestSupersededError) as told:
            await result(await pair[1].dispatch(sent["old"]))

        assert told.value.by == new.id
        assert await result(await pair[1].dispatch(sent["newest"])) == "did newest"
        assert stage.begun == ["new", "newest"]

    async def test_a_batch_is_run_when_it_is_full_and_each_item_is_in_one_run(self, pair: Pair, stage: Stage) -> None:
        """The action gets a list of what each request brought."""
        handles = [await pair[n % 2].dispatch(arrival("batched", str(n))) for n in range(3)]

        assert [await result(each) for each in handles] == [["0", "1", "2"]] * 3
        assert stage.begun == ["0+1+2"]

    # --- following -----------------------------------------------------------------------------------------------

    @DURABLE
    async def test_whoever_follows_gets_each_event_once_and_the_end(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """From any server, as it comes, and again after any number."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a", durable=durable))
        live = asyncio.ensure_future(all_of(await pair[1].find(ANN, handle.id)))
        await stage.until_begun("a")
        stage.release("a")
        events = await asyncio.wait_for(live, SOON)

        assert [(each.number, each.name) for each in events] == [(1, "message"), (2, "request.ended")]
        assert events[-1].data == {"status": "completed", "result": "did a"}
        again = await pair[1].find(ANN, handle.id)
        assert [[e.number for e in await all_of(again, after)] for after in (0, 1, 2)] == [[1, 2], [2], []]

    async def test_a_request_of_another_tenant_is_not_there(self, pair: Pair, stage: Stage) -> None:
        """Whatever is asked about it is answered as if it had never been."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a"))
        other, absent = hf.Principal("evil", "ann"), f"{handle.id[:-4]}0000"
        told: list[str] = []
        for principal, name in ((other, handle.id), (ANN, absent)):
            for asked in (pair[0].find, pair[1].info, pair[1].explain, pair[0].cancel):
                with pytest.raises(RequestNotFoundError) as missing:
                    await asked(principal, name)
                told.append(str(missing.value).replace(name, ""))
        stage.release("a")

        assert len(set(told)) == 1
        assert await result(handle) == "did a"

    @DURABLE
    async def test_what_an_action_raises_is_told_and_kept(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """The error is the cause of what its caller gets, and what was done to the session is dropped."""
        stage.failures["a"] = 1
        handle = await pair[0].dispatch(arrival("queued", "a", durable=durable))
        with pytest.raises(RequestFailedError) as failed:
            await result(handle)
        info = await (await pair[1].find(ANN, handle.id)).info()

        assert isinstance(failed.value.__cause__, ValueError)
        assert (info.status, info.error_type, info.error_status) == ("failed", "ValueError", 500)
        assert await names_of(pair[0]) == []

    async def test_a_durable_request_is_tried_again_and_what_it_does_once_is_not(
        self, pair: Pair, stage: Stage
    ) -> None:
        """It has as many attempts as its action says, and the record of the first knows what it did."""
        stage.failures["a"] = 2
        handle = await pair[0].dispatch(arrival("retried", "a", durable=True))

        assert await result(handle) == "did a"
        assert (stage.begun, stage.calls) == (["a", "a", "a"], ["a"])
        assert await names_of(pair[0]) == ["a"]

    async def test_what_is_done_to_a_session_meanwhile_is_kept(self, pair: Pair, stage: Stage) -> None:
        """A long request does not undo what a short one has appended while it ran."""
        stage.hold("long")
        long = await pair[0].dispatch(arrival("queued", "long", durable=True))
        await stage.until_begun("long")
        await result(await pair[1].dispatch(arrival("free", "short")))
        stage.release("long")
        await result(long)

        assert await names_of(pair[0]) == ["short", "long"]

    # --- stopping ------------------------------------------------------------------------------------------------

    @DURABLE
    @pytest.mark.parametrize("what", ["waiting", "running"])
    async def test_a_request_is_cancelled_from_any_server(
        self, pair: Pair, stage: Stage, what: str, *, durable: bool
    ) -> None:
        """Whether it waits or runs; its place is free then, and why it stopped is known."""
        stage.hold("a", "b")
        first = await pair[0].dispatch(arrival("queued", "a", durable=durable))
        await stage.until_begun("a")
        second = await pair[0].dispatch(arrival("queued", "b", durable=durable))
        doomed = first if what == "running" else second
        await pair[1].cancel(ANN, doomed.id, "enough")
        with pytest.raises(RequestCancelledError) as told:
            await result(doomed)
        stage.release("a", "b")

        assert told.value.reason == "enough"
        assert await result(second if doomed is first else first) in ("did a", "did b")
        assert (await pair[1].info(ANN, doomed.id)).status == "cancelled"

    @pytest.mark.parametrize(("choice", "status"), [("cancel", "cancelled"), ("continue", "completed")])
    async def test_a_caller_that_goes_away_takes_its_request_along_or_not(
        self, pair: Pair, stage: Stage, choice: str, status: str
    ) -> None:
        """As was declared; the place is free in either case."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a", on_disconnect=choice))
        await stage.until_begun("a")
        caller = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        stage.release("a")

        assert await result(await pair[1].dispatch(arrival("queued", "next"))) == "did next"
        assert (await all_of(handle))[-1].data["status"] == status  # its end is written once its place is free

    @pytest.mark.parametrize(("choice", "status"), [("cancel", "cancelled"), ("continue", "completed")])
    @DURABLE
    async def test_a_caller_that_goes_away_while_it_waits_leaves_the_line_or_not(
        self, pair: Pair, stage: Stage, choice: str, status: str, *, durable: bool
    ) -> None:
        """As was declared; whoever is behind it has its turn in either case."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        waiting = await pair[1].dispatch(arrival("queued", "b", durable=durable, on_disconnect=choice))
        behind = await pair[0].dispatch(arrival("queued", "c"))
        caller = asyncio.ensure_future(waiting.result())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        ended = (await all_of(waiting))[-1].data["status"] if choice == "cancel" else ""
        stage.release("a")

        assert (await result(first), await result(behind)) == ("did a", "did c")
        assert (ended or (await all_of(waiting))[-1].data["status"]) == status
        assert ("b" in stage.begun) == (choice == "continue")

    async def test_a_request_that_would_wait_for_its_own_key_is_refused(self, pair: Pair, stage: Stage) -> None:
        """Whether it is sent by the one that has the key, or a transport says so."""
        found: list[type[BaseException]] = []

        async def nest(request: hf.Request, name: str) -> str:
            with pytest.raises(WaitsForItselfError) as refused:
                await pair[1].dispatch(arrival("queued", "inner"))
            found.append(refused.type)
            with pytest.raises(WaitsForItselfError):
                await (await pair[1].dispatch(arrival("queued", "later", durable=True))).result()
            with pytest.raises(WaitsForItselfError):
                await pair[1].dispatch(arrival("queued", "far", chain=request.chain))
            return name

        stage.nest = nest
        assert await result(await pair[0].dispatch(arrival("nested", "a"))) == "a"
        assert found == [WaitsForItselfError]

    async def test_a_server_that_closes_lets_its_requests_end_and_admits_no_more(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Attended ones have their time; what comes is refused."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        closing = asyncio.ensure_future(pair[0].aclose())
        await asyncio.sleep(0)
        with pytest.raises(ArbiterUnavailableError):
            await pair[0].dispatch(arrival("queued", "b"))
        stage.release("a")

        assert await result(handle) == "did a"
        await asyncio.wait_for(closing, SOON)

    # --- idempotency ---------------------------------------------------------------------------------------------

    @DURABLE
    async def test_a_request_that_is_sent_twice_is_done_once(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """In flight it is refused with the id; afterwards the answer is told again; also with no policy at all."""
        for action in ("free", "queued"):
            stage.hold(action)
            sent = arrival(action, action, durable=durable, idempotency_key=f"k-{action}")
            first = await pair[0].dispatch(sent)
            with pytest.raises(IdempotencyInFlightError) as told:
                await pair[1].dispatch(sent)
            stage.release(action)
            answer = await result(first)
            again = await pair[1].dispatch(sent)

            assert (told.value.request_id, again.id, again.is_new) == (first.id, first.id, False)
            assert await result(again) == answer
        assert stage.begun == ["free", "queued"]

    async def test_a_key_stands_for_what_was_sent_with_it_by_one_user(self, pair: Pair) -> None:
        """With other inputs it is refused; another user's key is another key."""
        await result(await pair[0].dispatch(arrival("queued", "a", idempotency_key="k")))
        with pytest.raises(IdempotencyMismatchError):
            await pair[1].dispatch(arrival("queued", "b", idempotency_key="k"))
        other = arrival("queued", "c", idempotency_key="k", principal=hf.Principal("acme", "bob"))

        assert await result(await pair[1].dispatch(other)) == "did c"

    async def test_of_many_who_send_one_key_at_once_one_is_run(self, pair: Pair, stage: Stage) -> None:
        """The key is written in the commit that takes the request on."""
        sent = arrival("free", "a", idempotency_key="k")
        answers = await asyncio.gather(*(pair[n % 2].dispatch(sent) for n in range(6)), return_exceptions=True)
        taken = [each for each in answers if not isinstance(each, BaseException) and each.is_new]
        await result(taken[0])

        assert (len(taken), stage.begun) == (1, ["a"])
        assert all(isinstance(each, IdempotencyInFlightError) for each in answers if isinstance(each, BaseException))

    async def test_a_request_that_was_cancelled_is_run_when_it_is_sent_again(self, pair: Pair, stage: Stage) -> None:
        """It left nothing behind, so its key is free."""
        stage.hold("a")
        sent = arrival("queued", "a", idempotency_key="k")
        first = await pair[0].dispatch(sent)
        await stage.until_begun("a")
        await first.cancel()
        with pytest.raises(RequestCancelledError):
            await result(first)
        stage.release("a")
        again = await pair[1].dispatch(sent)

        assert (again.is_new, await result(again)) == (True, "did a")


async def all_of(handle: Handle, after: int = 0) -> list[Event]:
    """Return all events of a request after a number."""
    return [event async for event in handle.events(after)]


async def until_one_waits(dispatcher: Dispatcher) -> None:
    """Wait until somebody waits for the session's key."""
    async with asyncio.timeout(SOON):
        while not (await dispatcher.arbiter.look(("request", "acme", "session", "s-1"))).waiting:  # noqa: ASYNC110 -- in the store
            await asyncio.sleep(0.005)


async def until_free(dispatcher: Dispatcher) -> None:
    """Wait until nobody has the session's key: a run leaves its line just after what it has to do is done."""
    async with asyncio.timeout(SOON):
        while (await dispatcher.arbiter.look(("request", "acme", "session", "s-1"))).holder:  # noqa: ASYNC110 -- in the store
            await asyncio.sleep(0.002)


async def names_of(dispatcher: Dispatcher) -> list[str]:
    """Return what was appended to the session."""
    space = dispatcher.engine.space
    key = session_key(space, "acme", "s-1")
    record = (await space.read(key)).get(key)
    return [] if record is None else SESSIONS.decode(record.value).state.get("names", [])
