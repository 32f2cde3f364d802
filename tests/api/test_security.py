"""Promises about code and secrets: data never becomes code, imports do nothing, secrets stay hidden."""

from __future__ import annotations

import ast
import hashlib
import logging
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import standfast as sf
from standfast.errors import StandfastError
from tools import rules

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "standfast"

# Scripts that servers run. A changed one is a changed format: think of the stores that exist before you change a line.
SCRIPTS = {
    "stores/cloudflare/worker.js": "2997632d4b410347382cc27e573f3e035aa6fbf7d8496dd89e2c28f3c93a6676",
    "stores/postgresql/migrations/0001_records.sql": "9add0e4f37a3192af78460ff8fd3b63f03cacf9478a7bc76a995a58381735938",
    "stores/postgresql/migrations/0002_joining.sql": "c661d193e949378188136393a0ada7d6268c1981ae08defadd1bbab73106a0fe",
    "stores/postgresql/migrations/0003_views.sql": "e25eeb1f05c921766175fa22b95dc533b90fc1b4192fb41982acb222688e84a0",
    "stores/postgresql/migrations/0004_moving.sql": "561d11678e834aedc1e47592f0ace3f4d21d8f37a8a736ca9966e99f619af747",
    "stores/postgresql/migrations/0005_create.sql": "21b72caaafaef0e901a14b1861e5050d0f6a556696c2c477dcfd32ee11d35457",
    "stores/postgresql/migrations/0006_choose.sql": "867029d286c757507411fcf940e3fe10e38f34254e2d20654e6c61d7dfb4f6a4",
    "stores/postgresql/migrations/0007_mutexes.sql": "d530507a7cca9248df3a1257ea3dd9d5eeeba8f9230551d4cc12fa8ce242a3bb",
    "stores/postgresql/migrations/0008_counted.sql": "9ace9f1eb65b95157e5e2ece97f13dfa41e256ed016791f3636f0adf4cddabaa",
    "stores/postgresql/migrations/0009_fallen.sql": "5abfcc964d21a0aa6b874d9f93d55c7ad3dd0b8554af3c484fe2df0ead22a9ba",
    "stores/postgresql/migrations/0010_slots.sql": "971eef68fcb6e8634fa18679cffe92dd0816f1eca62e75e2176445ec326e3c2f",
    "stores/postgresql/migrations/0011_mutexes.sql": "271e17a423ed007fa0dadc0327489fefbfa2ade958d79388ee312a9c824c876b",
    "stores/postgresql/migrations/0012_few.sql": "39f56c5b298be4d0a7edd5a2cc288d01805a1888540626ab6645360f6fa198d3",
    "stores/postgresql/migrations/0013_count.sql": "e6daac84a0aca2f53dd0ebcf0e71909160fb003c1c88c356dcbc8a7fb533d3ff",
    "stores/postgresql/migrations/0014_slots.sql": "2f76ddc70c799f11b0fe560037b2f1e0cf07d8c8b0b28d72bf81d12e4b90ffdc",
    "stores/redis/lua/audience.lua": "23b33a4f6cb856e86fa34f796bd9931018474941cea310c668262f122e654c70",
    "stores/redis/lua/choose.lua": "5801e6b4bcac14cf61355fc6209d98d345863885e03fdad723d7ff72ab4233e5",
    "stores/redis/lua/close.lua": "5f2087e6ce75f1585161df43c32d6a8130e92f17b7b707ea917b7a917fb56de6",
    "stores/redis/lua/create_or_append.lua": "50347c1219e985f0f09d3090f111e5833a17c440f6c0c298b20d5ed0d9888bcf",
    "stores/redis/lua/forget.lua": "53832932e57394b76790984d47ead78129c8166f50aed1edfb0ef491909a512b",
    "stores/redis/lua/head.lua": "3709af089e18c56afb97693b8717c67e52da6a373a5e032a3d09122ca8fe4bfb",
    "stores/redis/lua/load.lua": "ce283320310c029e711122c227a8d516d6492abffa0c9979436d8be2820805ef",
    "stores/redis/lua/mark.lua": "563ea017a081ab7c4adc4964a37b26df60482a0ea162b79b8c3ac7bd87bfa3c9",
    "stores/redis/lua/move_or_delete.lua": "38f5e91510f53571abfe33824f4a8722d9f5e34594298657e87afaf812171453",
    "stores/redis/lua/probe.lua": "361ea7c5f2e377ad4659d2d6348473b6090e51abecd845840622db65714a6a38",
    "stores/redis/lua/quick.lua": "4cf66800cd627b5bfec970adc638fd40c5d678aebea8a774ee1eee8d35d98a03",
    "stores/redis/lua/read.lua": "42964043c54b5723b0d82e69afa8a36330ee2b9067e0d4ed6a7cb257f495b701",
    "stores/redis/lua/records.lua": "99f1c7f4216705f4f4e07df1c0a2ded61a32a933641c86a19d65cb62c14a64b3",
    "stores/redis/lua/reserve.lua": "5187149b377b7e78346ca9686eebd5d47cf967488b348f0103f4b97fc62e3e53",
    "stores/redis/lua/scan.lua": "169ae28d611b739cbb23634ea140456b41228bf5e6129d444d8948f717fb0c42",
    "stores/redis/lua/subscribe.lua": "c8a1ecc7edbbee564afed6e714c5be933b2c4832018930b5cd16c6d63b882d14",
    "stores/redis/lua/sweep.lua": "a42f0dbffe7d113e8a91c94a04e044aa875f1c4889e3f4cc913b65779bae66fd",
    "stores/redis/lua/tidy.lua": "c31c09fe494c56723b61297b8e074bd69736147691ab59c5d9edf0238f7af089",
    "stores/redis/lua/write.lua": "ec0c3779c638b45159c8980857df8f8fd7d0298f32eaf9edc0ea49f28e82d828",
    "stores/sqlite/schema.sql": "7a6b02294e89aeca8f2a9fba44ccd63ae2f1a4d4f37505cea4be43315dc54fe5",
    "web/chat/page/chat.js": "dddb682e9d868edbe69df2d5c984057cfd6c55e41f18c06b08d0c440e7049d0e",
    "web/dashboard/static/dashboard.js": "ab8a20c7cf1b1cd7197e019a2fef1fd0c1bd9a71ca3e0a85b23bd7c40f23bc81",
}

LISTEN = """
import sys

heard = []

def listen(event, arguments):
    mode = arguments[1] if event == "open" and len(arguments) > 1 else ""
    if event.startswith(DANGERS) or (event == "open" and isinstance(mode, str) and set(mode) & set("wax+")):
        heard.append((event, repr(arguments)[:200]))
"""
STARTS_SOMETHING = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.remove",
    "os.mkdir",
)
BECOMES_CODE = (*STARTS_SOMETHING, "import", "exec", "compile", "pickle.", "marshal.loads", "open", "ctypes.")


def run(code: str, *arguments: str, cwd: Path) -> str:
    """Run code in a fresh interpreter that writes no bytecode, and return what it prints."""
    command = [sys.executable, "-B", "-W", "error", "-c", code, *arguments]
    path = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    answer = subprocess.run(command, cwd=cwd, env=path, capture_output=True, text=True, check=False, timeout=50)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# --- data never becomes code --------------------------------------------------------------------------------------


RULES = [rules.loads_code, rules.runs_a_shell, rules.starts_a_thread, rules.reads_time]


def test_the_source_keeps_the_rules() -> None:
    """No pickle, eval, shell, import by name, stray thread or stray clock; an exception says why on its line."""
    found: list[str] = []
    for path in SOURCE.rglob("*.py"):
        lines, place = path.read_text(encoding="utf-8").splitlines(), path.relative_to(ROOT)
        for node in ast.walk(ast.parse("\n".join(lines))):
            problems = [problem for rule in RULES if (problem := rule(place, node))]
            if problems and "# rule: " not in lines[getattr(node, "lineno", 1) - 1]:
                found.append(f"{path}:{getattr(node, 'lineno', 1)}: {', '.join(problems)}")
    assert found == []


class Touch:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def canaries(marker: Path) -> list[bytes]:
    """Return payloads that would create ``marker`` if anything on the way turned data into code."""
    pickles = [pickle.dumps(Touch(marker), protocol) for protocol in range(6)]
    call = f'["{marker}","w"]'
    texts = [
        '{"py/object":"builtins.open","py/newargs":CALL}',
        '{"py/reduce":[{"py/function":"builtins.open"},{"py/tuple":CALL}]}',
        '{"__reduce__":["builtins.open",CALL]}',
        '{"type":"builtins.open","args":CALL}',
        '{"type":"standfast.space.open","url":"sqlite:///MARKER"}',
        '{"__class__":"pathlib.Path","__init__":CALL}',
        '{"lc":2,"type":"constructor","id":["builtins","open"],"args":CALL}',
        '{"__pydantic_serialized__":true,"cls":"os.system","value":"touch MARKER"}',
        '"!!python/object/apply:os.system [touch MARKER]"',
        "\"cos\\nsystem\\n(S'touch MARKER'\\ntR.\"",
    ]
    bodies = [text.replace("CALL", call).replace("MARKER", str(marker)).encode() for text in texts]
    shapes = [*bodies, *(b'{"data":%s,"type":"record"}' % body for body in bodies)]
    return [*pickles, *(b"1:" + data for data in (*pickles, *shapes))]


DECODE = """
import ast, pathlib, typing
from standfast.codec import Codec, PLAIN
from standfast.errors import DecodeError
from msgspec import Struct

class Record(Struct, tag="record"):
    data: typing.Any

class Other(Struct, tag="other"):
    name: str

codecs = [PLAIN, Codec(Record | Other), Codec(Record)]
payloads = ast.literal_eval(pathlib.Path("payloads").read_text())
answers = [PLAIN.decode(b'1:{"warm":"up"}')]
sys.addaudithook(listen)
for payload in payloads:
    for codec in codecs:
        try:
            answers.append(codec.decode(payload))
        except DecodeError as error:
            answers.append(str(error))
before, heard = heard, []
kinds = {type(answer) for answer in answers}
assert kinds <= {dict, list, str, Record}, kinds
print(len(answers), before)
"""


def test_a_payload_that_names_code_stays_data(tmp_path: Path) -> None:
    """Pickles and JSON that names functions, classes or tags are plain data or refused; nothing runs or is imported."""
    marker = tmp_path / "marker"
    payloads = canaries(marker)
    (tmp_path / "payloads").write_text(repr(payloads), encoding="utf-8")
    answer = run(f"DANGERS = {BECOMES_CODE!r}\n{LISTEN}{DECODE}", cwd=tmp_path)
    assert answer == f"{len(payloads) * 3 + 1} []\n"
    assert not marker.exists()


def test_the_canaries_sing(tmp_path: Path) -> None:
    """The pickles among the payloads do create the file when they are loaded: the test above can fail."""
    marker = tmp_path / "marker"
    pickle.loads(canaries(marker)[0]).close()  # noqa: S301 -- shows what must never happen elsewhere
    assert marker.exists()


STORE = """
import ast, asyncio, pathlib
import standfast as sf
from standfast.stores import Put

async def main(url, payloads):
    async with sf.open(url) as space:
        await space.read(space.key("warm", "up"))
        sys.addaudithook(listen)
        for number, payload in enumerate(payloads):
            key = space.key("canary", str(number), repr(payload)[:200])
            await space.commit(Put(key, payload))
            snapshot = await space.read(key)
            assert snapshot.records[key].value == payload
        return len((await space.scan(*space.key("canary").within(), limit=1000)).records)

print(asyncio.run(main(sys.argv[1], ast.literal_eval(pathlib.Path("payloads").read_text()))), heard)
"""


@pytest.mark.parametrize("url", ["memory://", "sqlite:///canary.db"])
def test_a_payload_that_names_code_stays_data_in_a_store(url: str, tmp_path: Path) -> None:
    """As key and as value, written and read back, a canary is bytes."""
    marker = tmp_path / "marker"
    payloads = canaries(marker)
    (tmp_path / "payloads").write_text(repr(payloads), encoding="utf-8")
    dangers = ("pickle.", "os.system", "subprocess.", "os.exec", "marshal.loads", "socket.connect")
    answer = run(f"DANGERS = {dangers!r}\n{LISTEN}{STORE}", url, cwd=tmp_path)
    assert answer == f"{len(payloads)} []\n"
    assert not marker.exists()


# --- imports do nothing -------------------------------------------------------------------------------------------

IMPORT = """
import importlib, pkgutil, threading
import asyncio, hashlib, logging, msgspec  # what the package imports is not on trial
import aiobotocore.session, aiohttp, asyncmy, asyncpg, pymongo, redis  # nor are the drivers of servers
sys.addaudithook(listen)
import standfast
for name in standfast.__all__:
    getattr(standfast, name)
for info in pkgutil.walk_packages(standfast.__path__, "standfast."):
    if not info.name.startswith("standfast.testing.conformance"):
        importlib.import_module(info.name)
print(heard, threading.active_count())
"""


def test_an_import_reaches_for_nothing(tmp_path: Path) -> None:
    """Importing every module opens no socket, starts no process or thread, and writes no file."""
    assert run(f"DANGERS = {STARTS_SOMETHING!r}\n{LISTEN}{IMPORT}", cwd=tmp_path) == "[] 1\n"
    assert list(tmp_path.iterdir()) == []


# --- secrets ------------------------------------------------------------------------------------------------------

ADDRESSES = [
    "postgresql://app:hunter2@db/prod",
    "postgresql://app:hun/hunter2@db/prod",
    "redis://:hunter2@cache/0?password=hunter2",
    "sqlite://app:hunter2@db/prod",
    "sqlite:///jobs.db?password=hunter2",
    "memory://name/path?token=hunter2",
    "sqllite:///x.db?key=hunter2",
    "app:hunter2@db/prod",
    "host=db password=hunter2",
    "postgresql://app:hunter2@[::1/prod",
]


@pytest.mark.parametrize("url", ADDRESSES)
async def test_a_url_that_cannot_be_opened_shows_no_secret(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Message, repr, facts, traceback and log of the error are free of passwords."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StandfastError) as caught:
        async with sf.open(url):
            pass
    error = caught.value
    lines = [line for line in traceback.format_exception(error) if not line.lstrip().startswith("File")]
    shown = f"{error} {error!r} {error.args} {vars(error)} {lines} {caplog.text}"
    assert "hunter2" not in shown


# --- what is shipped ----------------------------------------------------------------------------------------------


def test_shipped_scripts_are_the_reviewed_ones() -> None:
    """SQL and other scripts are constants: each is listed here with its digest."""
    files = [path for path in SOURCE.rglob("*") if path.suffix in {".sql", ".lua", ".js"}]
    found = {path.relative_to(SOURCE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert found == SCRIPTS


@pytest.mark.parametrize("pins", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_pin_has_a_version_and_hashes(pins: Path) -> None:
    """What is installed for development and tests is exactly what was chosen."""
    text = pins.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[\w.\[\]-]+==\S+( ; .*?)? .*--hash=sha256:[0-9a-f]{64}", line), line
        assert "://" not in line
