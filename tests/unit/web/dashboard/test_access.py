"""Who is let in, what each level may do, and which forms are taken."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import standfast as sf
from standfast.errors import DeclarationError
from standfast.web.dashboard import Dashboard
from standfast.web.dashboard.access import ACTIONS, OneTimeToken, access_of, form_token
from standfast.web.dashboard.pages import static_name
from standfast.web.dashboard.routes import POLICY, screens
from tests.unit.web.dashboard.opened import opened

PAGES = sorted(path for method, path in screens() if method == "GET" and "{" not in path and path != "/live")
QUERIES: dict[str, dict[str, Any]] = {
    "/run": {"id": "r1"},
    "/line": {"at": ["1", "", "ledger"]},
    "/why": {"run": "r1"},
    "/compare": {"id": "r1", "with": "r1"},
    "/test": {"id": "r1"},
}


async def test_every_page_and_action_is_closed_without_credentials() -> None:
    """No credentials, no page: whatever the address, known or not."""
    async with opened() as made:
        made.who = None
        for method, path in screens():
            address = path.replace("{action}", "run.cancel")
            answer = await made.http.request(method, address)
            assert answer.status_code == 401, (method, path)
            assert "r1" not in answer.text


async def test_every_page_and_action_is_closed_to_a_principal_without_a_level() -> None:
    """Who is known but has no level sees nothing either."""
    async with opened(None) as made:
        for method, path in screens():
            answer = await made.http.request(method, path.replace("{action}", "run.cancel"))
            assert answer.status_code == 403, (method, path)


@pytest.mark.parametrize("level", ["all", "read", frozenset({"run.cancel"})])
async def test_every_level_reads_every_page(level: Any) -> None:
    """Reading is the same for all levels, but for the page that is made of values."""
    async with opened(level) as made:
        await made.engine.start("posting", "x", id="r1")
        for path in PAGES:
            answer = await made.http.get(path, params=QUERIES.get(path))
            shows_values = path == "/test"
            assert answer.status_code == (403 if shows_values and level != "all" else 200), path
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("allowed", [frozenset(), *[frozenset({name}) for name in ACTIONS]], ids=repr)
async def test_an_action_is_done_only_by_a_level_that_has_it(allowed: frozenset[str]) -> None:
    """Each of the actions is refused to each level without it: its preview, and the form itself."""
    async with opened(allowed) as made:
        for action in ACTIONS:
            seen = await made.get(f"act/{action}")
            sent = await made.http.post(f"/act/{action}")
            refused = (seen.status_code == 403, sent.status_code == 403 and "may not" in sent.text)
            assert refused == ((False, False) if action in allowed else (True, True)), action


async def test_a_form_from_elsewhere_is_not_taken() -> None:
    """The browser says where a form comes from, and only our pages know its token."""
    async with opened() as made:
        await made.engine.start("approval", "x", id="r1")
        token = form_token(made.dashboard.secret, sf.Principal("default", "ann"), "run.cancel")
        other = form_token(made.dashboard.secret, sf.Principal("default", "bob"), "run.cancel")
        own = {"origin": "http://ops.test", "sec-fetch-site": "same-origin"}
        for headers, given in [
            ({}, ""),
            (own, ""),
            (own, other),
            (own, form_token(made.dashboard.secret, sf.Principal("default", "ann"), "run.retry")),
            ({**own, "sec-fetch-site": "cross-site"}, token),
            ({**own, "sec-fetch-site": "same-site"}, token),
            ({**own, "origin": "http://evil.test"}, token),
            ({"origin": "null"}, token),
            ({"origin": "null", "sec-fetch-site": "cross-site"}, token),
        ]:
            data = {"id": "r1", "form_token": given}
            answer = await made.http.post("/act/run.cancel", data=data, headers=headers)
            assert answer.status_code == 403, (headers, given)
        assert not (await made.engine.get("r1")).has_ended
        own["origin"] = "null"  # as browsers send it from a page with no-referrer
        answer = await made.http.post("/act/run.cancel", data={"id": "r1", "form_token": token}, headers=own)
        assert answer.status_code == 303


async def test_a_tenant_sees_its_own_and_nothing_else() -> None:
    """The tenant comes from the credentials, and pages are made from its space alone."""
    async with opened() as made:
        await made.engine.start("posting", "x", id="of-default")
        made.who = sf.Principal("acme", "eve")
        assert "of-default" not in (await made.get("runs")).text
        assert (await made.get("run", id="of-default")).status_code == 404
        assert (await made.get("act/run.cancel", id="of-default")).status_code == 404
        made.who = sf.Principal("default", "ann")
        assert "of-default" in (await made.get("runs")).text


async def test_the_token_of_the_address_opens_one_browser_once() -> None:
    """The first to open the address gets a cookie; the address is worth nothing afterwards."""
    async with opened() as made:
        token = OneTimeToken(sf.Principal("default", "me"))
        app = Dashboard(made.engine, authenticate=token, access=lambda _: "read")
        transport, address = httpx.ASGITransport(app), f"/?token={token.token}"
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", follow_redirects=True) as first,
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1", follow_redirects=True) as second,
        ):
            assert (await first.get("/?token=wrong")).status_code == 401
            assert (await first.get(address)).status_code == 200
            assert (await first.get("/runs")).status_code == 200
            assert (await second.get(address)).status_code == 401


async def test_without_authenticate_only_the_token_opens_it() -> None:
    """A dashboard that was given no credentials makes its own."""
    async with opened() as made:
        app = Dashboard(made.engine)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ops.test") as http:
            assert (await http.get("/")).status_code == 401
            shown = await http.get("/", headers={"authorization": f"Bearer {app.token}"})
            assert shown.status_code == 200


async def test_static_files_are_named_by_what_is_in_them_and_need_no_credentials() -> None:
    """They are kept by browsers for ever, so their names change with them."""
    async with opened() as made:
        made.who = None
        answer = await made.get(f"static/{static_name('dashboard.css')}")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert (await made.get("static/dashboard.css")).status_code == 404
        assert (await made.get("static/..%2faccess.py")).status_code == 404


def test_a_level_that_is_none_is_refused_with_the_levels_there_are() -> None:
    """A mistake in the function that says who may do what closes the dashboard."""
    for wrong in ("everything", {"run.destroy"}, 7, True):
        with pytest.raises(DeclarationError, match="'all', 'read', None"):
            access_of(sf.Principal(), wrong)
