"""Every pattern, and every walk over bytes of a caller, takes time that grows with their length and no faster."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib
import re
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import standfast
from standfast.clock import Instant
from standfast.codec import PLAIN
from standfast.durations import seconds
from standfast.errors import StandfastError
from standfast.fencing import parse_fence_header
from standfast.flows.request import Principal
from standfast.keys import RecordKey, decode_parts, display, encode_parts
from standfast.log_hook import as_logfmt
from standfast.redaction import mask_message, mask_text, mask_url
from standfast.stores.url import file_of
from standfast.web.asgi import headers_of, host_of, is_loopback, raw_headers, route_path
from standfast.web.auth import BearerTokens, token_digest
from standfast.web.call import content_type, read_after, read_chain, read_json, read_preference
from standfast.web.chat.feed import FeedCursor
from standfast.web.signatures import GitHub, Slack, StandardWebhooks, Stripe
from standfast.workflows.schedules.cron import check_cron, zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(standfast.__file__).parent
SIZE: Final = 8_000
SLACK: Final = 0.005
"""Seconds below which nothing is compared: the clock and the machine are not that exact."""

TIMES: Final = 9.0
"""How much longer four times the length may take. Linear takes 4 times as long, quadratic 16 times."""

# What each pattern finds hard: texts that repeat what its parts have in common, and end in something that fits none.
HARD: Final[dict[str, tuple[str, ...]]] = {
    "audit._STAMP": ("1", "a", "1-", "-a"),
    "cli.target._ROLE": (":a:`a.", ":a", "a.", ":a:`~a"),
    "cli.cloudflare._NAME": ("a", "-", "a-"),
    "codec._NAME": ("a", "_a1"),
    "codec._NUMBER": ("1", "1:"),
    "codec._QUOTE": ("'", "unknown field ", "unknown field `"),
    "durations._TEXT": (" ", "1", "1.", "a", "1 a "),
    "fencing._VALUE": ("a", "%20", "a;1", ";"),
    "fencing._IDENTIFIER": ("a", "_1"),
    "flows.declaration._NAME": ("a", "a-"),
    "policies._NAME": ("a", "a."),
    "flows.request._EVENT_NAME": ("a", "a."),
    "log_hook._BARE": ("a", "a:/"),
    "log_hook._WORD_START": ("aA", "a"),
    "redaction._BEFORE_QUERY": ("a", "?"),
    "redaction._CREDENTIALS": ("a", "="),
    "redaction._GAP": ("a", " ", "'"),
    "redaction._HOSTS": ("a", ":", ",", "a:1,", "[::1]", "[:"),
    "redaction._MARKS": ("a", ":@", "/"),
    "redaction._PAIRS": ("a", "&", ";a"),
    "redaction._MASKED_URL": ("a", "a:", "a://", "a://a", "a://:", "a+.-", ":**"),
    "redaction._PAIR_IN_TEXT": ("secret", "token_", "secret=", "password = '", "pwd   ", "apikey-"),
    "redaction._PATH": ("a", "/"),
    "redaction._PLAIN_NAME": ("a", "a."),
    "redaction._PLAIN_USER": ("a", "%"),
    "redaction._PLAIN_VALUE": ("a", ":"),
    "redaction._UNFIT": ("a", "/"),
    "redaction._URL_IN_TEXT": ("a", "a:", "a:/", "a://", "a+.-"),
    "stores.dynamodb.connection._REGION": ("a", "-"),
    "stores.dynamodb.connection._TABLE": ("a", ".-"),
    "stores.etcd.gateway._PREFIX": ("a", "a/", "/", "a/a."),
    "stores.etcd.health._VERSION": ("1", "1.", "."),
    "stores.group_commit._ATTEMPT": ("0", "0-", "0.", "0/"),
    "stores.libsql.connection._FROZEN": ("standfast frozen ", "standfast ", "1"),
    "stores.mongodb.connection._DATABASE": ("a", "é"),
    "stores.mysql.connection._UNFIT": ("a", "`"),
    "stores.remote.liveness._TOKEN": ("0", "p1:", ":0"),
    "stores.postgresql.statements._FILE": ("0", "0001_a", "_a"),
    "stores.address._AFTER_AUTHORITY": ("a", ",", "a,", "@"),
    "stores.address._IDENTIFIER": ("a", "_1"),
    "stores.postgresql.transactions._ENDS_IT": (" ", "start ", "rollback ", "rollback work ", "begin"),
    "stores.postgresql.transactions._OURS": ("standfast", "standfast.", '"standfast" . ', "standfast ", ' ."'),
    "stores.redis.connection._ACL": ("can't ", "can't run this ", "no ", "ACL "),
    "stores.redis.connection._CODE": ("-", " ", "MOVED", " MOVED", "-NOAUTH"),
    "stores.encryption._NAME": ("a", "._-"),
    "stores.sqlite.locks._TOKEN": ("0", "1:", ":0", "-"),
    "stores.sqlite.file._ESCAPE": ("\\", "\\0", "\\040"),
    "stores.sqlite.database.FROZEN": ("standfast frozen ", "standfast ", "1"),
    "trace_context._PARENT": ("0", "00-", "0-", "00-00000000000000000000000000000001-0000000000000001-01-"),
    "trace_context._STATE": ("a", " ", "a=b,"),
    "web.call._WAIT": ("wait", "wait ", "wait=", 'wait="', " "),
    "web.auth._DIGEST": ("sha256:", "0"),
    "web.chat.feed._PAIR": ("1", "1:", "1-1"),
    "web.problems._WORD": ("aA", "a"),
    "web.problems._NEXT_WORD": ("_", "_a"),
    "web.webhooks._NAME": ("a", "a-"),
    "web.deliveries._PLAIN_ID": ("a", "~"),
    "workflows.definition._NAME": ("a", "a: "),
    "workflows.start._NEXT": ("~", "~1", "1"),
    "workflows.start._TEXT": ("a", "é"),
    "workflows.failures._NAME": ("a", "_", "__notes__"),
    "workflows.failures._INSTALLED": ("/site-packages", "/", "/site-packages/"),
}


def _modules(having: str = "") -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = path.read_text()
        if having in text and not name.startswith("testing."):
            yield name, ast.parse(text)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"))):
                yield node
            case _:
                pass


def _named(module: str, tree: ast.Module) -> dict[str, ast.Call]:
    """Return the patterns that a module has under a name, by that name."""
    found: dict[str, ast.Call] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.target
            name = target.id if isinstance(target, ast.Name) else ast.unparse(target).removeprefix("self").upper()
            found[f"{module}.{name}".replace("..", ".")] = node.value
    return found


def _patterns() -> dict[str, re.Pattern[Any]]:
    """Return every pattern of the package by its place."""
    found: dict[str, re.Pattern[Any]] = {}
    for module, tree in _modules(having="import re\n"):
        named = _named(module, tree)
        for call in _calls(tree):
            name = next((name for name, value in named.items() if value is call), None)
            if name is None:  # it needs a name, so that it is measured
                found[f"{module}:{call.lineno}"] = re.compile("")
                continue
            loaded = getattr(importlib.import_module(f"standfast.{module}"), name.rpartition(".")[2])
            if isinstance(loaded, str):  # it is completed with the name of a schema
                loaded = re.compile(loaded.replace("@", "standfast"), re.IGNORECASE)
            found[name] = loaded
    return found


@cache
def _uses() -> dict[str, set[str]]:
    """Return which methods of the patterns are called, by the names of the patterns."""
    found: dict[str, set[str]] = {}
    for _, tree in _modules():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method)):
                    found.setdefault(name.upper(), set()).add(method)
                case _:
                    pass
    return found


PATTERNS: Final = _patterns()


def _families(seeds: tuple[str, ...], size: int) -> Iterator[str]:
    for first in seeds:
        body = (first * size)[:size]
        yield body + "\0"
        yield body + "@"
        for other in seeds:
            if other != first:
                yield body[: size // 2] + (other * size)[: size // 2] + "\0"


def _time(work: Callable[[], object]) -> float:
    """Return the processor time that something takes: the least of three, since others use the machine as well."""
    best = float("inf")
    gc.disable()  # it walks over whatever else is in memory
    try:
        for _ in range(3):
            before = time.thread_time()
            with suppress(StandfastError, ValueError, RecursionError):
                work()
            best = min(best, time.thread_time() - before)
            if best < SLACK:
                break
    finally:
        gc.enable()
    return best


def _check(work: Callable[[Any], object], make: Callable[[int], Any], what: str, size: int = SIZE) -> None:
    """Fail if four times the length takes much more than four times as long."""
    large = make(4 * size)
    took = _time(lambda: work(large))
    if took < SLACK:
        return
    small = make(size)
    before = _time(lambda: work(small))
    assert took <= TIMES * max(before, SLACK / 4), f"{what}: {before:.4f} s, and for four times the length {took:.4f} s"


def test_every_pattern_has_hard_texts_to_be_measured_with() -> None:
    """A pattern is added together with what it finds hard, and what is measured is there."""
    assert PATTERNS.keys() == HARD.keys()


@pytest.mark.parametrize("name", sorted(HARD))
def test_no_pattern_takes_longer_than_its_text_is_long(name: str) -> None:
    """Whatever repeats in a text, each pattern passes over it once, and not once for each of its characters."""
    pattern = PATTERNS[name]
    count = len(list(_families(HARD[name], 8)))
    for nth in range(count):

        def make(size: int, nth: int = nth) -> Any:
            text = list(_families(HARD[name], size))[nth]
            return text.encode() if isinstance(pattern.pattern, bytes) else text

        for use in _uses()[name.rpartition(".")[2]] & {"fullmatch", "match", "search", "finditer", "split", "sub"}:
            _check(partial(_used, pattern, use), make, f"{name}.{use} of {make(30)!r}")


def _used(pattern: Any, use: str, text: Any) -> object:
    if use == "sub":
        return pattern.sub(text[:0], text)
    found = getattr(pattern, use)(text)
    return list(found) if use == "finditer" else found


def _scope(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http", "path": "/", "headers": headers}


def _token(text: str) -> object:
    from starlette.requests import HTTPConnection  # noqa: PLC0415 -- an extra, needed only here

    tokens = BearerTokens({token_digest("t"): Principal("acme", "ann")}, failures=1_000_000)
    return tokens(HTTPConnection(_scope([(b"authorization", text.encode("latin-1", "replace"))])))


NOW: Final = Instant(0)
MARKS: Final = (":", "@", "a", " ", ",", ";", "=", "%", "/", '"', "\\", "[")
TEXTS: Final = (
    "a:",
    "a=",
    "a,",
    "a@",
    "://",
    "::@",
    "1-1,",
    "sqlite://" + ":",
    "1,t=",
    "v1=a,",
    "t=1,",
    "v1,a ",
    "1:1,",
    "1-2,",
    "* ",
    "*/1,",
)
KEY: Final = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WALKS: Final[dict[str, Callable[[str], object]]] = {
    "codec": lambda text: PLAIN.decode(b"1:" + text.encode()),
    "codec, quoted": lambda text: PLAIN.decode(b'1:["' + text.encode() + b'"]'),
    "key": lambda text: decode_parts(encode_parts((text, text[:9]))),
    "key, raw": lambda text: decode_parts(text.encode()),
    "key, shown": lambda text: display((text,)),
    "record key": RecordKey,
    "duration": seconds,
    "cron": check_cron,
    "zone": zone_of,
    "masked address": mask_url,
    "masked address of a server": lambda text: mask_url(f"postgresql://{text}"),
    "masked address of a file": lambda text: mask_url(f"sqlite://{text}"),
    "masked text": mask_text,
    "masked message": mask_message,
    "address of a store": file_of,
    "log": lambda text: as_logfmt({"a": text}),
    "fence": parse_fence_header,
    "headers": lambda text: headers_of(_scope([(b"a%d" % n, part.encode()) for n, part in enumerate(text.split(","))])),
    "raw headers": lambda text: raw_headers(_scope([(part.encode(), b"") for part in text.split(",")])),
    "preference": lambda text: read_preference({"prefer": text}),
    "last event": lambda text: read_after({"last-event-id": text}, None),
    "kind": lambda text: content_type({"content-type": text}),
    "host": host_of,
    "loopback": is_loopback,
    "path": lambda text: route_path({"path": text, "root_path": "/a"}),
    "chain": read_chain,
    "cursor": FeedCursor.read,
    "token": _token,
    "token, bearer": lambda text: _token(f"Bearer {text}"),
    "JSON": lambda text: asyncio.run(read_json(text.encode())),
    "Stripe": lambda text: Stripe("secret").verify({"stripe-signature": text}, b"", NOW),
    "Slack": lambda text: Slack("secret").verify(
        {"x-slack-signature": text, "x-slack-request-timestamp": "1"}, b"", NOW
    ),
    "GitHub": lambda text: GitHub("secret").verify({"x-hub-signature-256": text}, b"", NOW),
    "Standard Webhooks": lambda text: StandardWebhooks(KEY).verify(
        {"webhook-id": "a", "webhook-timestamp": "0", "webhook-signature": text}, b"", NOW
    ),
}


def _repeated(seed: str, end: str, size: int) -> str:
    return (seed * size)[:size] + end


@pytest.mark.parametrize("name", WALKS)
def test_no_walk_over_a_callers_text_takes_longer_than_it_is_long(name: str) -> None:
    """Parsers of headers, keys, addresses, signatures and times pass over what they read a fixed number of times."""
    for seed in (*MARKS, *TEXTS):
        for end in ("", "@", "!"):
            _check(WALKS[name], partial(_repeated, seed, end), f"{name} of {seed!r}")


DEEP: Final[dict[str, Callable[[int], bytes]]] = {
    "groups of 199 levels": lambda size: b"[" + b",".join([b"[" * 198 + b"]" * 198] * (size // 397)) + b"]",
    "a comb of objects": lambda size: b"[" + b",".join([b'{"a":' * 150 + b"1" + b"}" * 150] * (size // 901)) + b"]",
    "one level": lambda size: b"[" + b",".join([b"[]"] * (size // 3)) + b"]",
    "too many levels": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "levels that do not match": lambda size: b"[" * (size // 2) + b"}" * (size // 2),
    "a sawtooth": lambda size: (b"[" * 150 + b"]" * 149) * (size // 299),
    "quotes": lambda size: b"[" + b",".join([b'"[\\"["'] * (size // 7)) + b"]",
}


@pytest.mark.parametrize("name", DEEP)
def test_nested_json_is_judged_in_one_pass(name: str) -> None:
    """However deeply JSON nests, what it costs to find out is a few milliseconds for the largest value there is."""

    def read(body: bytes) -> object:
        return PLAIN.decode(b"1:" + body)

    _check(read, DEEP[name], name, 80_000)
    assert _time(lambda: read(DEEP[name](340_000))) < 0.15  # ten times what it takes; it took 0.4 s with many passes


@pytest.mark.parametrize("text", [":" * 2_000 + "@", "a:" * 1_000 + "@", ":@" * 1_000, "sqlite://" + ":" * 1_990])
def test_a_message_of_colons_is_masked_at_once(text: str) -> None:
    """What others write into an error costs no more than other text: 2 kB of colons took 0.4 seconds."""
    assert _time(lambda: mask_message(text)) < 0.05
