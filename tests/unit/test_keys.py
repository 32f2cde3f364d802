"""Keys: no two collide, whatever they are made of, and families are declared once."""

from __future__ import annotations

import copy
import importlib
import pickle
import random
import subprocess
import sys
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import ArgumentTypeError, DeclarationError, InvalidArgumentError
from standfast.ids import new_id
from standfast.keys import (
    MAX_KEY_BYTES,
    Key,
    KeyFamily,
    RecordKey,
    decode_parts,
    display,
    encode_parts,
    require_key,
)
from tests.sizes import rounds

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

REPO = KeyFamily("test-repo")
USER = KeyFamily("test-user")

# What has broken key encodings elsewhere: separators, terminators, escapes, wildcards, look-alikes, astral characters.
NASTY = [
    "",
    ":",
    ",",
    "/",
    "\x00",
    "\x01",
    "\x1f",
    "*",
    "?",
    "\\",
    "'",
    '"',
    "(",
    ")",
    " ",
    "\n",
    "\x7f",
    "%",
    "_",
    "a",
    "b",
]
NASTY += [
    "\x00\x01",
    "\x00\xff",
    "\xff",
    "é",
    "e\u0301",
    "\N{MUSICAL SYMBOL G CLEF}",
    "\U0010ffff",
    "\uffff",
    "\ue000",
    "\u200b",
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(NASTY)
tuples = st.lists(texts, max_size=4).map(tuple)


def nasty_tuple(chance: random.Random) -> tuple[str, ...]:
    """Make a short tuple of short texts from the characters that break encodings."""
    parts = ("".join(chance.choices(NASTY, k=chance.randrange(4))) for _ in range(chance.randrange(4)))
    return tuple(parts)


def neighbour(parts: tuple[str, ...], chance: random.Random) -> tuple[str, ...]:
    """Change a tuple a little: those that are nearly the same are the ones that collide."""
    text = "\x02".join(parts)
    cut = chance.randrange(len(text) + 1)
    return tuple((text[:cut] + chance.choice([*NASTY, "\x02"]) + text[cut + chance.randrange(2) :]).split("\x02"))


@pytest.mark.heavy
def test_a_million_pairs_keep_apart_and_in_order(seed: int) -> None:
    """For every pair of tuples: bytes and shown forms are equal only if the tuples are, and sort as they do."""
    for number in rounds("10,000 pairs of keys", full=100, quick=2):
        chance = random.Random(seed + number)
        for _ in range(10_000):
            first = nasty_tuple(chance)
            second = neighbour(first, chance) if chance.random() < 0.7 else nasty_tuple(chance)
            one, two = encode_parts(first), encode_parts(second)
            assert (one == two) == (first == second), (first, second)
            assert (one < two) == (first < second), (first, second)
            assert (display(first) == display(second)) == (first == second), (first, second)
            assert decode_parts(one) == first


@given(tuples)
def test_encoding_is_reversible(parts: tuple[str, ...]) -> None:
    """The tuple comes back from its bytes exactly."""
    assert decode_parts(encode_parts(parts)) == parts


@given(st.lists(tuples, min_size=2, max_size=20))
def test_bytes_sort_like_the_tuples(many: list[tuple[str, ...]]) -> None:
    """A store that compares bytes scans in the order of the tuples."""
    assert [decode_parts(encoded) for encoded in sorted(map(encode_parts, many))] == sorted(many)


@given(tuples)
def test_the_shown_form_is_one_line_of_plain_characters(parts: tuple[str, ...]) -> None:
    """A key can be logged and printed without breaking a line or a terminal."""
    shown = display(parts)
    assert shown.isascii()
    assert shown.isprintable()


@given(st.binary(max_size=30))
def test_bytes_that_no_tuple_gives_are_refused(data: bytes) -> None:
    """Decoding accepts exactly what encoding makes."""
    try:
        parts = decode_parts(data)
    except InvalidArgumentError:
        return
    assert encode_parts(parts) == data


@pytest.mark.parametrize("separator", NASTY)
def test_no_character_can_imitate_a_boundary(separator: str) -> None:
    """A separator inside a part is data, never the end of the part."""
    apart, together = REPO("a", "b"), REPO(f"a{separator}b")
    assert apart != together
    assert str(apart) != str(together)
    assert REPO(separator, "") != REPO("", separator) or separator == ""


def test_how_a_text_is_composed_is_kept() -> None:
    """Text is not normalised: two spellings of the same letter are two keys."""
    composed, decomposed = REPO("é"), REPO(unicodedata.normalize("NFD", "é"))
    assert composed != decomposed
    assert str(composed) != str(decomposed)
    assert decomposed.parts == ("e\u0301",)


def test_empty_parts_count() -> None:
    """No part, one empty part and two empty parts are three keys."""
    assert len({REPO(), REPO(""), REPO("", "")}) == 3


def test_keys_are_equal_when_family_and_parts_are() -> None:
    """The same family and parts make the same key; another family, another key."""
    assert REPO("a") == REPO("a")
    assert hash(REPO("a")) == hash(REPO("a"))
    assert REPO("a") != USER("a")
    assert REPO("a") != "test-repo(a)"
    assert REPO("a") != REPO("a").encoded
    assert sorted([REPO("b"), REPO("a", "z"), REPO("a")]) == [REPO("a"), REPO("a", "z"), REPO("b")]


def test_a_family_cannot_imitate_another_familys_key() -> None:
    """The family's name is a part of its own, whatever it is called."""
    tricky = KeyFamily("test-repo(a)")
    assert tricky() != REPO("a")
    assert str(tricky()) != str(REPO("a"))


def test_a_key_is_shown_as_it_is_written() -> None:
    """Plain parts are bare, others quoted."""
    assert str(REPO("/srv/repo")) == "test-repo(/srv/repo)"
    assert str(REPO("v2", "v3")) == "test-repo(v2, v3)"
    assert str(REPO()) == "test-repo()"
    assert repr(REPO("a b", "")) == "<Key test-repo('a b', '')>"


# --- what is no key -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["/srv/repo", b"x", 7, None, ("test-repo", "a"), REPO])
def test_what_no_family_made_is_refused_with_the_fix(value: object) -> None:
    """A raw string where a key is wanted is an error that shows how to make the key."""
    with pytest.raises(ArgumentTypeError, match=r"expected a Key, got .*FAMILY = KeyFamily\("):
        require_key(value)
    assert require_key(REPO("a")) == REPO("a")


def test_a_look_alike_is_no_key() -> None:
    """The type is nominal: having the same attributes is not enough."""

    class Imitation:
        family, parts, encoded = REPO, ("a",), REPO("a").encoded

    with pytest.raises(ArgumentTypeError):
        require_key(Imitation())
    assert REPO("a") != Imitation()
    with pytest.raises(ArgumentTypeError):
        Key("test-repo", ("a",))  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("part", [1, None, b"a", ("a",), 1.5])
def test_a_part_is_text(part: Any) -> None:
    """A number is not turned into text behind the caller's back."""
    with pytest.raises(ArgumentTypeError, match=r"str as a key part \(choose its text yourself"):
        REPO(part)


def test_half_of_a_surrogate_pair_is_refused() -> None:
    """What is not text cannot be stored as text."""
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        REPO("a\ud800")


# --- families -----------------------------------------------------------------------------------------------------


def written(folder: Path, name: str, text: str) -> ModuleType:
    """Write a module and import it."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to import from, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    return tmp_path


def declaration(name: str, more: str = "") -> str:
    """Return the text of a module that declares a family."""
    return f"from standfast.keys import KeyFamily\n\nFAMILY = KeyFamily({name!r}{more})\n"


def test_a_second_family_of_a_name_fails_at_import_with_both_places(folder: Path) -> None:
    """Two modules that chose the same name find out when the second is imported."""
    name = new_id()
    written(folder, "billing_locks", declaration(name))
    with pytest.raises(DeclarationError) as caught:
        written(folder, "mail_locks", "\n" + declaration(name))
    assert f"{folder / 'billing_locks.py'}:3" in str(caught.value)
    assert f"{folder / 'mail_locks.py'}:4" in str(caught.value)


def test_a_reloaded_module_has_the_same_family(folder: Path) -> None:
    """The same file and line again is no second family, and its keys are the same keys."""
    module = written(folder, "reloaded_locks", declaration(new_id(), ', modes=("pull",)'))
    before = module.FAMILY
    importlib.reload(module)
    assert module.FAMILY is before
    assert module.FAMILY("a") == before("a")


@pytest.mark.parametrize(
    "change", [', modes=("pull",)', ', alone=("exclusive",)', ', after=(KeyFamily("test-earlier"),)']
)
def test_a_reload_that_changes_modes_or_order_is_refused(folder: Path, change: str) -> None:
    """Holders and waiters live by the old declaration: a changed one needs a new process."""
    name = new_id()
    module = written(folder, "changed_locks", declaration(name))
    (folder / "changed_locks.py").write_text(declaration(name, change), encoding="utf-8")
    with pytest.raises(DeclarationError, match="restart the process"):
        importlib.reload(module)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("<ipython-input-1-abc>", "<ipython-input-7-def>"),
        ("/tmp/ipykernel_42/1001.py", "/tmp/ipykernel_42/1002.py"),  # noqa: S108 -- a name that Jupyter makes, no file
        ("<python-input-0>", "<python-input-3>"),
        ("<stdin>", "<stdin>"),
    ],
)
def test_a_cell_can_be_run_again(first: str, second: str) -> None:
    """A notebook's cell or a prompt's line, edited or not, declares the same family again."""
    name, session = new_id(), {"__name__": "__main__"}
    exec(compile(declaration(name), first, "exec"), session)  # noqa: S102 -- what a notebook does
    before = session["FAMILY"]
    exec(compile("\n\n" + declaration(name), second, "exec"), session)  # noqa: S102 -- what a notebook does
    assert session["FAMILY"] is before


def test_two_modules_without_a_file_are_two_places() -> None:
    """Code run from text is told apart by its module, though both are called <string>."""
    code = compile(declaration(new_id()), "<string>", "exec")
    exec(code, {"__name__": "plugin_one"})  # noqa: S102 -- what a plugin loader does
    exec(code, {"__name__": "plugin_one"})  # noqa: S102 -- the same plugin again
    with pytest.raises(DeclarationError, match=r"in module plugin_one and again at .* in module plugin_two"):
        exec(code, {"__name__": "plugin_two"})  # noqa: S102 -- another one


def test_threads_that_race_to_declare_agree_on_one_place() -> None:
    """Of two places that declare a name at once, one wins and the other always fails."""
    name, start = new_id(), threading.Barrier(8)

    def here() -> KeyFamily:
        start.wait()
        return KeyFamily(name)

    def there() -> KeyFamily:
        start.wait()
        return KeyFamily(name)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(declare) for declare in [here, there] * 4]
    answers = [future.exception() or future.result() for future in futures]
    families = [answer for answer in answers if isinstance(answer, KeyFamily)]
    assert (len(families), len(set(map(id, families)))) == (4, 1)
    assert sum(isinstance(answer, DeclarationError) for answer in answers) == 4


def test_a_key_travels_to_a_spawned_process(tmp_path: Path) -> None:
    """A child that imports the same file has the same families, and keys sent to it are keys there."""
    script = tmp_path / "spawning.py"
    script.write_text(
        "import multiprocessing\n"
        "from standfast.keys import KeyFamily\n"
        "REPO = KeyFamily('repo')\n"
        "def show(key):\n"
        "    assert key == REPO('a', 'b') and key.family is REPO\n"
        "    return key\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(show, [REPO('a', 'b')]) == REPO('a', 'b'))\n",
        encoding="utf-8",
    )
    answer = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=50)
    assert answer.stdout == "True\n", answer.stderr


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])  # noqa: S301 -- our own bytes
def test_a_copied_family_is_the_family_itself(again: Any) -> None:
    """Copies and pickles name the family; they never make a second one."""
    assert again(REPO) is REPO
    assert again(REPO("a")) == REPO("a")
    assert again(RecordKey("ns", "a")) == RecordKey("ns", "a")
    assert type(again(RecordKey("ns", "a"))) is RecordKey


def test_a_pickled_family_that_is_not_declared_here_is_refused() -> None:
    """Unpickling never registers a family."""
    data = pickle.dumps(REPO).replace(b"test-repo", b"test-none")
    with pytest.raises(InvalidArgumentError, match="no key family of that name"):
        pickle.loads(data)  # noqa: S301 -- our own bytes


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": ""}, "not empty"),
        ({"name": "a\nb"}, "printable"),
        ({"name": 5}, "str as a family name"),
        ({"modes": "pull"}, r'modes=\("pull",\)'),
        ({"modes": ("pull", "pull")}, "declared once"),
        ({"modes": ("pull",), "alone": ("pull",)}, "declared once"),
        ({"modes": ("",)}, "a mode is printable"),
        ({"modes": (1,)}, "str as a mode"),
        ({"after": ("test-repo",)}, "KeyFamily in after="),
        ({"after": REPO}, r"write after=\(FIRST,\)"),
    ],
)
def test_a_bad_declaration_is_refused(arguments: dict[str, Any], problem: str) -> None:
    """Nothing is registered by a declaration that makes no sense."""
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match=problem):
        KeyFamily(**({"name": "test-bad"} | arguments))
    assert KeyFamily("test-good").after == ()


# --- record keys --------------------------------------------------------------------------------------------------


@given(tuples)
def test_a_record_key_is_its_tuple(parts: tuple[str, ...]) -> None:
    """A record key gives its parts back and says its namespace."""
    key = RecordKey(*parts)
    assert key.parts == parts
    assert key.namespace == encode_parts(parts[:1])
    assert str(key) == display(parts)


def test_a_key_of_a_thousand_bytes_is_the_longest() -> None:
    """One byte more is refused, and the message says what to do."""
    longest = RecordKey("x" * (MAX_KEY_BYTES - 2))
    assert len(longest) == MAX_KEY_BYTES
    with pytest.raises(InvalidArgumentError, match="put a digest of its long part into it"):
        RecordKey("x" * (MAX_KEY_BYTES - 1))
    with pytest.raises(InvalidArgumentError, match="1,003 bytes encoded, and at most 1,000"):
        longest.child("x")


def test_escapes_count_towards_the_length() -> None:
    """It is the encoded key that must fit: a NUL takes two bytes, an astral character four."""
    with pytest.raises(InvalidArgumentError):
        RecordKey("\x00" * 500)
    with pytest.raises(InvalidArgumentError):
        RecordKey("\N{MUSICAL SYMBOL G CLEF}" * 250)


@given(tuples, st.lists(texts, min_size=1, max_size=3).map(tuple), tuples)
def test_a_range_holds_exactly_the_keys_that_continue_it(
    stem: tuple[str, ...], rest: tuple[str, ...], other: tuple[str, ...]
) -> None:
    """What starts with the same parts lies within; everything else outside."""
    start, end = RecordKey(*stem).within()
    assert start <= RecordKey(*stem).child(*rest) < end
    assert (start <= RecordKey(*other) < end) == (other[: len(stem)] == stem)


@given(tuples, tuples)
def test_no_key_lies_between_a_key_and_its_successor(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """A scan that goes on at the successor misses nothing and repeats nothing."""
    one, two = RecordKey(*first), RecordKey(*second)
    assert (one < two) == (one.successor() <= two)


def test_the_bound_of_a_range_can_be_shown() -> None:
    """Not every bound is a key; its repr must not fail."""
    assert repr(RecordKey("a").within()[1]) == r"<RecordKey b'a\x00\x01\xff'>"


def test_all_small_tuples_keep_apart() -> None:
    """Every tuple of up to three of the worst texts has bytes and a shown form of its own."""
    worst = ["", "\x00", "\x01", "\x00\x01", ",", "'", "a"]
    every = [parts for size in range(4) for parts in product(worst, repeat=size)]
    assert len({encode_parts(parts) for parts in every}) == len(every)
    assert len({display(parts) for parts in every}) == len(every)
