"""What can be changed from the dashboard: each change is first shown as a preview, then done by a second form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, structs
from starlette.responses import Response

from standfast.audit import Actor
from standfast.clock import MICROSECONDS, Instant, seconds_between
from standfast.durations import typed
from standfast.errors import ForbiddenError, StandfastError
from standfast.flows.request_list import cancel_request, read_request
from standfast.flows.view import is_over, note_operator
from standfast.keys import undeclared_key
from standfast.locks.inspect import counted, explain, length, moment, one_line
from standfast.redaction import mask_text
from standfast.web.dashboard.access import ACTIONS, PageError, form_token, is_own_form
from standfast.web.dashboard.bulk import read_work
from standfast.web.dashboard.run_pages import BULK, count_chosen
from standfast.web.dashboard.screens import address_in
from standfast.web.dashboard.values import json_in, masked, moment_in, pretty, shown, unmasked
from standfast.workflows.limits import instant_of_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.keys import Key
    from standfast.locks.inspect import ExplainedEntry, Explanation
    from standfast.locks.rate_limiter import RateLimiter
    from standfast.locks.survey import RateInfo
    from standfast.web.dashboard.pages import View
    from standfast.workflows.engine import Engine

MOST_BODY: Final = 100_000
MOST_FIELDS: Final = 20


class FormField(Struct, frozen=True):
    """Something that the operator still has to say.

    Attributes:
        name: The field of the form.
        label: What it is called.
        value: What is there already.
        hint: What can be typed.
        is_long: Whether it has several lines.
    """

    name: str
    label: str
    value: str = ""
    hint: str = ""
    is_long: bool = False


class Preview(Struct, frozen=True, kw_only=True):
    """What an action will do, before it is done.

    Attributes:
        subject: To what.
        will: What will happen, in sentences.
        back: The page that it is about.
        fields: What the form carries on.
        asks: What the operator still has to say.
        is_harmless: Whether nothing is lost by it.
        is_question: Whether it cannot be said yet what will happen: the operator has to say something first.
        names: Some of those that it happens to, with their pages.
    """

    subject: str
    will: tuple[str, ...]
    back: str
    fields: tuple[tuple[str, str], ...]
    asks: tuple[FormField, ...] = ()
    is_harmless: bool = False
    is_question: bool = False
    names: tuple[tuple[str, str], ...] = ()


Fields: TypeAlias = dict[str, list[str]]


@final
class PageAction:
    """The preview of an action, and the function that does it and returns the next page."""

    __slots__ = ("execute", "preview")

    def __init__(
        self,
        preview: Callable[[View, Fields], Awaitable[Preview]],
        execute: Callable[[View, Engine, Fields], Awaitable[str | Response]],
    ) -> None:
        self.preview, self.execute = preview, execute


async def preview(view: View) -> Response:
    """Show what an action will do."""
    name, action = _allowed(view)
    fields = {key: view.query.getlist(key) for key in view.query}
    shown = await action.preview(view, fields)
    return view.page("preview.html", preview=shown, action=name, label=ACTIONS[name], token=view.token(name))


async def execute(view: View) -> Response:
    """Do what a form of ours asks for, and show the page that it was about."""
    name, action = _allowed(view)
    fields = await _form(view)
    expected = form_token(view.dashboard.secret, view.access.principal, name)
    if not is_own_form(view.request.headers, _one(fields, "form_token"), expected):
        detail = "The form did not come from a page of this dashboard, or is too old."
        raise PageError(403, "Nothing was done", detail, "Open the page again and repeat it there.")
    principal, client = view.access.principal, view.request.client
    actor = Actor(principal.user or "operator", "http", "" if client is None else client.host)
    try:
        back = await action.execute(view, view.engine.acting_as(actor), fields)
    except StandfastError as problem:
        raise PageError(409, "Nothing was done", mask_text(str(problem)), "Go back and look at it again.") from problem
    if isinstance(back, Response):
        return back
    mark = "&" if "?" in back else "?"
    return Response(None, 303, {"location": f"{back}{mark}done={name}", "cache-control": "no-store"})


def _allowed(view: View) -> tuple[str, PageAction]:
    name = view.request.path_params["action"]
    if name not in PERFORMED:
        raise PageError(404, "There is no such action", "The address names none.")
    if not view.access.may(name):
        raise ForbiddenError(ACTIONS[name])
    return name, PERFORMED[name]


async def _form(view: View) -> Fields:
    """Return the fields of a form, as browsers send it. A body that is too large is not read to its end."""
    body = b""
    async for chunk in view.request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise PageError(413, "Nothing was done", f"The form has more than {MOST_BODY:,} bytes.")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as problem:
        raise PageError(400, "Nothing was done", "The form cannot be read.") from problem
    fields: Fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def _one(fields: Fields, name: str) -> str:
    return fields.get(name, [""])[0]


# --- runs -------------------------------------------------------------------------------------------------------------


async def _about_run(view: View, fields: Fields, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    run_id = _one(fields, "id")
    info = await view.engine.get(run_id)
    state = f"It is {info.status.replace('_', ' ')} now."
    back = view.url("run", id=run_id)
    return Preview(subject=f"run {run_id}", will=(state, *will), back=back, fields=(("id", run_id),), **more)


async def _preview_cancel(view: View, fields: Fields) -> Preview:
    info = await view.engine.get(_one(fields, "id"))
    children = await view.engine.list(parent=info.id, limit=20)
    running = [each.id for each in children.runs if not each.has_ended]
    will = ["Its code gets RunCancelled where it waits, and may clean up. Locks that it holds are released by that."]
    if info.status in ("pending", "quarantined"):
        will = ["No worker drives it, so it ends at once."]
    if running:
        will.append(f"Its unfinished children are cancelled too: {', '.join(map(one_line, running))}.")
    return await _about_run(view, fields, *will, asks=(FormField("reason", "Why, for the record"),))


async def _cancel(view: View, engine: Engine, fields: Fields) -> str:
    await note_operator(engine.space, _one(fields, "id"), (await engine.get(_one(fields, "id"))).tags)
    await engine.cancel(_one(fields, "id"), _one(fields, "reason").strip() or "cancelled in the dashboard")
    return view.url("run", id=_one(fields, "id"))


async def _preview_retry(view: View, fields: Fields) -> Preview:
    will = "It resumes from its history: the step that failed runs again, with all its attempts."
    kept = "Steps that have ended are not run again. Children that it still waits for resume, too."
    return await _about_run(view, fields, will, kept, is_harmless=True)


async def _retry(view: View, engine: Engine, fields: Fields) -> str:
    info = await engine.get(_one(fields, "id"))
    if info.has_ended and await is_over(engine.space, info.id, info.tags):
        words = "It is the run of a request that has ended, and whose caller has the answer."
        raise PageError(409, "Nothing was done", words, "Send the request again.")
    await engine.retry(_one(fields, "id"))
    return view.url("run", id=_one(fields, "id"))


async def _preview_restart(view: View, fields: Fields) -> Preview:
    info = await view.engine.get(_one(fields, "id"))
    will = "A new run is started from its beginning. This one is left as it is."
    asks: tuple[FormField, ...] = ()
    if view.access.reveals:
        hint = "The arguments by name. What is masked stays as it was, if it is left so."
        asks = (FormField("input", "Input, as JSON", pretty(masked(info.input)), hint, is_long=True),)
    else:
        will = will.replace("is started", "with the same input is started")
    shown = await _about_run(
        view, fields, will, "Every step runs again, with effects of its own.", is_harmless=True, asks=asks
    )
    too_long = sum(len(each.value) for each in asks) > MOST_BODY // 4
    return msgspec.structs.replace(shown, asks=()) if too_long else shown


async def _restart(view: View, engine: Engine, fields: Fields) -> str:
    run_id = _one(fields, "id")
    given: Any = None
    if "input" in fields and view.access.reveals:
        before = (await view.engine.get(run_id)).input
        given = unmasked(json_in(_one(fields, "input"), "The input"), before)
        given = None if given == before else given
    return view.url("run", id=(await engine.restart(run_id, input=given)).id)


async def _preview_fork(view: View, fields: Fields) -> Preview:
    step = _one(fields, "step")
    history = await view.engine.history(_one(fields, "id"))
    place = next((number for number, each in enumerate(history) if each.id == step), None)
    if place is None:
        raise PageError(404, "No such step", f"The run has recorded no {one_line(step)!r}.")
    entries = "1 entry" if place == 1 else f"{place:,} entries"
    will = f"A new run has what this one recorded before {one_line(step)}: {entries}."
    will += " That step and all after it run."
    found = await _about_run(view, fields, will, "This run is left as it is.", is_harmless=True)
    return msgspec.structs.replace(found, fields=(*found.fields, ("step", step)))


async def _fork(view: View, engine: Engine, fields: Fields) -> str:
    return view.url("run", id=(await engine.fork(_one(fields, "id"), _one(fields, "step"))).id)


async def _preview_signal(view: View, fields: Fields) -> Preview:
    name = _one(fields, "name")
    asks = (
        FormField("name", "The name that the run waits for", name),
        FormField("value", "The value, as JSON", "null"),
    )
    will = "The signal is durable when it is sent, and waits until the run takes it."
    return await _about_run(view, fields, will, asks=asks, is_harmless=True)


async def _signal(view: View, engine: Engine, fields: Fields) -> str:
    value = json_in(_one(fields, "value") or "null", "The value")
    await engine.signal(_one(fields, "id"), _one(fields, "name"), value)
    return view.url("run", id=_one(fields, "id"))


_ARGUMENTS: Final = FormField("arguments", "The arguments, as a JSON array", "[]")


async def _preview_update(view: View, fields: Fields) -> Preview:
    will = "A handler of its code is called, which may refuse it. What it changes is durable. Its answer is shown."
    return await _about_run(view, fields, will, asks=(FormField("name", "The name of the update"), _ARGUMENTS))


async def _update(view: View, engine: Engine, fields: Fields) -> Response:
    return await _answer(view, fields, engine.update)


async def _preview_query(view: View, fields: Fields) -> Preview:
    will = "Its history is replayed in this process, and its code is asked. Nothing is changed by that."
    asks = (FormField("name", "The name of the query"), _ARGUMENTS)
    return await _about_run(view, fields, will, asks=asks, is_harmless=True)


async def _query(view: View, engine: Engine, fields: Fields) -> Response:
    if not view.access.reveals:
        raise PageError(403, "Nothing was done", "An answer is a value, and values are hidden from you.")
    return await _answer(view, fields, engine.query)


async def _answer(view: View, fields: Fields, ask: Callable[..., Awaitable[object]]) -> Response:
    run_id, name = _one(fields, "id"), _one(fields, "name")
    arguments = json_in(_one(fields, "arguments") or "[]", "What you gave")
    if not isinstance(arguments, list):
        raise PageError(400, "Nothing was done", "The arguments must be an array.", "Write [1, 2] for two arguments.")
    answer = await ask(run_id, name, *cast("list[object]", arguments))
    text = shown(msgspec.to_builtins(answer)) if view.access.reveals else ""
    return view.page("answer.html", run_id=run_id, name=name, text=text)


async def _preview_purge(view: View, fields: Fields) -> Preview:
    will = "It is deleted with its history, and with everything that it has started. That cannot be undone."
    kept = "Its idempotency key stays, so that what was done once is not done again."
    return await _about_run(view, fields, will, kept)


async def _purge(view: View, engine: Engine, fields: Fields) -> str:
    await engine.purge(_one(fields, "id"))
    return view.url("runs")


# --- many runs --------------------------------------------------------------------------------------------------------


def _preview_many(action: str) -> Callable[[View, Fields], Awaitable[Preview]]:
    async def preview_many(view: View, fields: Fields) -> Preview:
        query = {name: _one(fields, name) for name in fields}
        counted = await count_chosen(view, action, query)
        number = counted.count.number
        back = view.url("runs", **{name: value for name, value in query.items() if name in counted.given})
        if not number:
            raise PageError(404, "There are none", f"No runs are like this that could be {counted.bulk.done}.")
        some = "1 run" if str(counted.count) == "1" else f"{counted.count} runs"
        will = [f"{some} will {_MANY[action]}"]
        if counted.count.has_more:
            will.append(f"More than {number:,} were not counted; all of them are meant.")
        will.append("Runs that are started from now on are not meant. It can be stopped before its end.")
        asks = [FormField("number", f"To confirm, type the number: {number}", hint=str(number))]
        if action == "runs.cancel":
            asks.insert(0, FormField("reason", "Why, for the record"))
        own = (*counted.given.items(), ("counted", str(number)))
        names = tuple((each.id, view.url("run", id=each.id)) for each in counted.first)
        return Preview(
            subject=f"{counted.count} runs",
            will=tuple(will),
            back=back,
            fields=own,
            asks=tuple(asks),
            is_harmless=action == "runs.retry",
            names=names,
        )

    return preview_many


_MANY: Final = {
    "runs.cancel": "be asked to stop, with their children.",
    "runs.retry": "resume at the step that failed. What was recorded is not done again.",
    "runs.purge": "be deleted, with everything that they have started. That cannot be undone.",
}


def _do_many(action: str) -> Callable[[View, Engine, Fields], Awaitable[str]]:
    async def do_many(view: View, engine: Engine, fields: Fields) -> str:
        typed = _one(fields, "number").strip().replace(",", "").rstrip("+")
        if typed != _one(fields, "counted") or not typed:
            raise PageError(400, "Nothing was done", "The number that was typed is not that of the runs.", "Go back.")
        counted = await count_chosen(
            view, action, {name: _one(fields, name) for name in fields}, _one(fields, "reason").strip()
        )
        user = view.access.principal.user or "operator"
        job = await view.dashboard.jobs.start(view.engine.space, engine, user, action, counted)
        return view.url("bulk", id=job.id)

    return do_many


async def _preview_stop(view: View, fields: Fields) -> Preview:
    job_id = _one(fields, "id")
    job = await read_work(view.engine.space, job_id)
    will = f"No more runs are {job.done_word}. What was done so far stays done: {counted(job.done, 'run')}."
    own, back = (("id", job_id),), view.url("bulk", id=job_id)
    return Preview(subject="the work", will=(will,), back=back, fields=own, is_harmless=True)


async def _stop(view: View, engine: Engine, fields: Fields) -> str:
    del engine
    job_id, space = _one(fields, "id"), view.engine.space
    record = await read_work(space, job_id)
    if not view.access.may(record.action):
        raise PageError(403, "You may not do this", "You may stop what you may begin.")
    await view.dashboard.jobs.stop(space, job_id, record)
    return view.url("bulk", id=job_id)


# --- lines ------------------------------------------------------------------------------------------------------------


async def _line_in(view: View, fields: Fields) -> tuple[tuple[str, ...], Explanation]:
    address = address_in(view, given=fields.get("at", []))
    if not address[0].isdigit():
        raise PageError(400, "Nothing was done", "Limits and requests are changed on their own pages.")
    return address, await explain(view.engine.space, address, limit=1_000)


def _key_of(address: tuple[str, ...]) -> Key | str:
    return undeclared_key(address[1], *address[2:]) if address[1] else address[2]


def _about_line(view: View, address: tuple[str, ...], told: Explanation, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    fields = (*(("at", part) for part in address), *more.pop("fields", ()))
    return Preview(subject=told.key, will=will, back=view.url("line", at=list(address)), fields=fields, **more)


def _name_of(entry: ExplainedEntry) -> str:
    return f"run {one_line(entry.run)}" if entry.run is not None else one_line(entry.owner)


async def _preview_release(view: View, fields: Fields) -> Preview:
    address, told = await _line_in(view, fields)
    entry = _one(fields, "entry")
    holder = next((each for each in told.holders if each.entry == entry), None)
    if holder is None:
        raise PageError(409, "It does not hold any more", "The holder has left the line meanwhile.")
    following = [each for each in told.waiters if each.is_alive][:1]
    fence = "" if holder.fence is None else f" Fence {holder.fence} is void: writes that are guarded by it are refused."
    hands = "Nothing waits for it, so it becomes free."
    if following:
        hands = f"Releasing it hands the lock to {_name_of(following[0])}, with a new and higher fence."
    loses = f"{_name_of(holder)} is dead already: nothing is lost."
    if holder.is_alive:
        loses = f"{_name_of(holder)} has held it for {length(max(0.0, holder.held_for))}, and gets LeaseLostError."
    return _about_line(view, address, told, hands, loses + fence, fields=(("entry", entry),))


async def _release(view: View, engine: Engine, fields: Fields) -> str:
    address, _ = await _line_in(view, fields)
    if not await engine.space.mutex(_key_of(address)).force_release(_one(fields, "entry")):
        raise PageError(409, "Nothing was done", "The holder has left the line meanwhile.")
    return view.url("line", at=list(address))


async def _preview_withdraw(view: View, fields: Fields) -> Preview:
    address, told = await _line_in(view, fields)
    entry = _one(fields, "entry")
    waiter = next((each for each in told.waiters if each.entry == entry), None)
    if waiter is None:
        raise PageError(409, "It does not wait any more", "The waiter has left the line, or holds it by now.")
    will = f"{_name_of(waiter)} waits for {length(max(0.0, waiter.waited))} with {waiter.place} in front of it."
    return _about_line(
        view,
        address,
        told,
        will,
        "It leaves the line, and gets WithdrawnError where it waits.",
        fields=(("entry", entry),),
    )


async def _withdraw(view: View, engine: Engine, fields: Fields) -> str:
    address, _ = await _line_in(view, fields)
    if not await engine.space.mutex(_key_of(address)).withdraw(_one(fields, "entry")):
        raise PageError(409, "Nothing was done", "The waiter has left the line, or holds it by now.")
    return view.url("line", at=list(address))


async def _preview_resize(view: View, fields: Fields) -> Preview:
    address, told = await _line_in(view, fields)
    if told.kind != "semaphore":
        raise PageError(400, "Nothing was done", "Only a semaphore that is in use has permits to set.")
    used = sum(each.weight for each in told.holders)
    will = f"It has {told.permits} permits, of which {used} are in use; {told.waiting:,} wait."
    rest = "With more, waiters that fit hold it at once. With fewer, no holder is evicted."
    return _about_line(view, address, told, will, rest, asks=(FormField("permits", "Permits", str(told.permits)),))


async def _resize(view: View, engine: Engine, fields: Fields) -> str:
    address, told = await _line_in(view, fields)
    await engine.space.semaphore(_key_of(address), permits=told.permits or 1).resize(_count(_one(fields, "permits")))
    return view.url("line", at=list(address))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 7:  # noqa: PLR2004 -- as many digits as a count may have
        raise PageError(400, "Nothing was done", "It must be a whole number, at least 1.")
    return int(text)


# --- schedules and limits ---------------------------------------------------------------------------------------------


async def _about_schedule(view: View, fields: Fields, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    found = await view.engine.schedules.get(_one(fields, "id"))
    own = (("id", found.id),)
    return Preview(subject=f"schedule {found.id}", will=will, back=view.url("schedules"), fields=own, **more)


async def _preview_pause(view: View, fields: Fields) -> Preview:
    will = "It starts no more runs until it is resumed. Ticks that pass meanwhile are missed. Runs under way continue."
    return await _about_schedule(view, fields, will, asks=(FormField("note", "Why, for others"),))


async def _pause(view: View, engine: Engine, fields: Fields) -> str:
    await engine.schedules.pause(_one(fields, "id"), _one(fields, "note"))
    return view.url("schedules")


async def _preview_resume(view: View, fields: Fields) -> Preview:
    return await _about_schedule(view, fields, "It fires again, from its next tick on.", is_harmless=True)


async def _resume(view: View, engine: Engine, fields: Fields) -> str:
    await engine.schedules.resume(_one(fields, "id"))
    return view.url("schedules")


async def _preview_trigger(view: View, fields: Fields) -> Preview:
    found = await view.engine.schedules.get(_one(fields, "id"))
    will = (
        f"A run of {one_line(found.workflow)} is started now, besides the ticks. If one is unfinished: {found.overlap}."
    )
    return await _about_schedule(view, fields, will, is_harmless=True)


async def _trigger(view: View, engine: Engine, fields: Fields) -> str:
    return view.url("run", id=(await engine.schedules.trigger(_one(fields, "id"))).id)


async def _preview_backfill(view: View, fields: Fields) -> Preview:
    start, end = (moment_in(_one(fields, name), name, view.now) for name in ("start", "end"))
    asks = (
        FormField("start", "From (UTC)", _one(fields, "start"), "2026-11-17 08:00, or 6 hours ago"),
        FormField("end", "To (UTC); empty: now", _one(fields, "end"), "2026-11-17 09:00"),
    )
    if start is None:
        will = "Runs are started for ticks that have passed. Ticks that have had their run do not get another one."
        return await _about_schedule(view, fields, will, asks=asks, is_question=True, is_harmless=True)
    end = end or datetime.fromtimestamp(view.now / MICROSECONDS, UTC)
    ticks = await view.engine.schedules.ticks(_one(fields, "id"), start, end)
    missing = [tick for tick in ticks if not tick.is_started]
    if not missing:
        raise PageError(404, "There is nothing to make up for", f"All {len(ticks):,} ticks have had their run.")
    will = f"{counted(len(missing), 'run')} will be started now"
    will += ", the oldest first; they wait for each other." if len(missing) > 1 else "."
    rest = f"{len(ticks) - len(missing):,} of {len(ticks):,} ticks have had their run already."
    times = ", ".join([*(moment(tick.nominal_at) for tick in missing[:5]), *["..."][: len(missing[5:])]])
    shown = await _about_schedule(view, fields, will, rest, f"The ticks: {times}", is_harmless=True)
    own = (*shown.fields, ("start", start.isoformat()), ("end", end.isoformat()))
    return msgspec.structs.replace(shown, fields=own)


async def _backfill(view: View, engine: Engine, fields: Fields) -> str:
    start, end = (moment_in(_one(fields, name), name, view.now) for name in ("start", "end"))
    if start is None or end is None:
        raise PageError(400, "Nothing was done", "It must be said from when to when.")
    await engine.schedules.backfill(_one(fields, "id"), start, end)
    return view.url("schedules")


async def _rate_in(view: View, fields: Fields) -> RateInfo:
    address = address_in(view, given=fields.get("at", []))
    found = next((each for each in (await view.engine.space.rates(limit=1_000)).rates if each.address == address), None)
    if found is None:
        raise PageError(409, "Nothing was done", "The rate limiter is at rest: it is full and open.")
    return found


def _about_rate(view: View, rate: RateInfo, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    own = tuple(("at", part) for part in rate.address)
    return Preview(subject=f"rate limiter {rate.key}", will=will, back=view.url("limits"), fields=own, **more)


def _limiter(engine: Engine, rate: RateInfo) -> RateLimiter:
    key = _key_of(rate.address)
    return engine.space.rate_limiter(key, interval=rate.interval, capacity=rate.capacity, follow=True)


async def _preview_close(view: View, fields: Fields) -> Preview:
    will = "Nothing passes for so long. Tokens are earned meanwhile, and waiters keep their places."
    rest = "It opens again by itself. A cool-down that is under way is not made shorter."
    asks = (FormField("length", "For how long", "30 seconds"),)
    return _about_rate(view, await _rate_in(view, fields), will, rest, asks=asks)


async def _close(view: View, engine: Engine, fields: Fields) -> str:
    await _limiter(engine, await _rate_in(view, fields)).close_for(_one(fields, "length"))
    return view.url("limits")


async def _preview_open(view: View, fields: Fields) -> Preview:
    return _about_rate(view, await _rate_in(view, fields), "Its cool-down ends now. What has tokens passes.")


async def _open(view: View, engine: Engine, fields: Fields) -> str:
    await _limiter(engine, await _rate_in(view, fields)).open_again()
    return view.url("limits")


async def _preview_cancel_request(view: View, fields: Fields) -> Preview:
    found = await read_request(view.engine.space, view.access.principal.tenant, _one(fields, "id"))
    will = f"It is {found.status} now, for {one_line(f'{found.flow}.{found.action}')}."
    if found.has_ended:
        raise PageError(409, "Nothing was done", "The request has ended already.")
    stops = "It is asked to stop, wherever it waits or runs. Its caller gets that as the answer."
    own, asks = (("id", found.id),), (FormField("reason", "Why, for the record"),)
    return Preview(subject=f"request {found.id}", will=(will, stops), back=view.url("flows"), fields=own, asks=asks)


async def _cancel_request(view: View, engine: Engine, fields: Fields) -> str:
    reason = _one(fields, "reason").strip() or "cancelled in the dashboard"
    await cancel_request(engine, view.access.principal.tenant, _one(fields, "id"), reason)
    return view.url("flows")


def _about_limit(view: View, fields: Fields, *will: str, **more: Any) -> Preview:  # noqa: ANN401 -- fields of Preview
    workflow, key = _one(fields, "workflow"), _one(fields, "key")
    own = (("workflow", workflow), ("key", key), ("has_key", _one(fields, "has_key")))
    subject = f"{workflow}{f' for {key}' if key else ''}"
    return Preview(subject=subject, will=will, back=view.url("limits"), fields=own, **more)


async def _preview_set(view: View, fields: Fields) -> Preview:
    max_text, lasts = _one(fields, "max").strip(), _one(fields, "lasts").strip()
    asks = (
        FormField("max", "How many runs", max_text),
        FormField("lasts", "For how long", lasts, hint="2 hours; empty: until it is cleared"),
    )
    if _one(fields, "shown") != "yes":
        will = "This number of runs may be unfinished at a time, in all processes, whatever their code says."
        rest = "A larger number lets waiting runs begin at once; a smaller one ends none."
        found = _about_limit(view, fields, will, rest, asks=asks, is_question=True)
        return structs.replace(found, fields=(*found.fields, ("shown", "yes")))
    told = await _said_of_limit(view, fields, _count(max_text), lasts)
    found = _about_limit(view, fields, *told, is_harmless=True)
    return structs.replace(found, fields=(*found.fields, ("max", max_text), ("lasts", lasts)))


async def _said_of_limit(view: View, fields: Fields, most: int, lasts: str) -> list[str]:
    """Return what setting a limit will do to the runs that have a place or wait for one."""
    workflow, key = _one(fields, "workflow"), _limit_key(fields)
    now = Instant(view.now)
    end = instant_of_end(now, None, typed(lasts) if lasts else None)
    page = await view.engine.limits(workflow, limit=500)
    found = next((each for each in page.limits if each.key == key), None)
    used, waiting, before = (0, 0, None) if found is None else (found.in_use, found.waiting, found.max)
    will = [f"{counted(most, 'run')} may be unfinished at a time from now on, in all processes."]
    begin = max(0, min(waiting, most - used))
    if begin:
        will.append(f"{begin:,} of {waiting:,} waiting {'run begins' if begin == 1 else 'runs begin'} at once.")
    elif used > most:
        will.append(f"{used:,} are unfinished now. None of them is ended; the next one begins when fewer are left.")
    elif waiting:
        will.append(f"{waiting:,} {'run waits' if waiting == 1 else 'runs wait'} on: {used:,} are unfinished now.")
    then = before if found is None or found.until is None else found.then
    if end is None:
        will.append("It stays so until the limit is cleared.")
    else:
        back = "what the code says" if then is None else f"{then:,}"
        left = length(seconds_between(now, end))
        will.append(f"It ends by itself in {left}, at {moment(end)}. Then it is {back} again.")
    return will


def _limit_key(fields: Fields) -> str | None:
    return _one(fields, "key") if _one(fields, "has_key") == "yes" else None


async def _set(view: View, engine: Engine, fields: Fields) -> str:
    text = _one(fields, "lasts").strip()
    most, lasts = _count(_one(fields, "max").strip()), typed(text) if text else None
    await engine.set_limit(_one(fields, "workflow"), most, key=_limit_key(fields), lasts=lasts)
    return view.url("limits")


async def _preview_clear(view: View, fields: Fields) -> Preview:
    return _about_limit(view, fields, "As many runs may be unfinished as the code of the workflow says, from now on.")


async def _clear(view: View, engine: Engine, fields: Fields) -> str:
    await engine.clear_limit(_one(fields, "workflow"), key=_limit_key(fields))
    return view.url("limits")


PERFORMED: Final[dict[str, PageAction]] = {
    "run.cancel": PageAction(_preview_cancel, _cancel),
    "run.retry": PageAction(_preview_retry, _retry),
    "run.restart": PageAction(_preview_restart, _restart),
    "run.fork": PageAction(_preview_fork, _fork),
    "run.signal": PageAction(_preview_signal, _signal),
    "run.update": PageAction(_preview_update, _update),
    "run.query": PageAction(_preview_query, _query),
    "run.purge": PageAction(_preview_purge, _purge),
    **{name: PageAction(_preview_many(name), _do_many(name)) for name in BULK},
    "runs.stop": PageAction(_preview_stop, _stop),
    "lock.release": PageAction(_preview_release, _release),
    "lock.withdraw": PageAction(_preview_withdraw, _withdraw),
    "lock.resize": PageAction(_preview_resize, _resize),
    "schedule.pause": PageAction(_preview_pause, _pause),
    "schedule.resume": PageAction(_preview_resume, _resume),
    "schedule.trigger": PageAction(_preview_trigger, _trigger),
    "schedule.backfill": PageAction(_preview_backfill, _backfill),
    "limit.set": PageAction(_preview_set, _set),
    "limit.clear": PageAction(_preview_clear, _clear),
    "rate.close": PageAction(_preview_close, _close),
    "rate.open": PageAction(_preview_open, _open),
    "request.cancel": PageAction(_preview_cancel_request, _cancel_request),
}
