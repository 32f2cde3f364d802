"""Values are sealed with a key, for one place: who has neither can neither read nor move them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import standfast as sf
from standfast.clock import later
from standfast.errors import (
    BrokenSealError,
    DecodeError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownSealingKeyError,
)
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.encryption import MOST_VALUES, Keyring
from standfast.stores.protocol import Commit
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = Keyring.new_key(), Keyring.new_key()
PLACE = b"here"


def test_what_is_sealed_can_be_opened_where_it_was_sealed_for() -> None:
    """A value comes back, and looks different each time it is sealed."""
    keyring = Keyring({"a": NEW})
    once, twice = keyring.seal(b"secret", PLACE), keyring.seal(b"secret", PLACE)

    assert keyring.open(once, PLACE) == keyring.open(twice, PLACE) == b"secret"
    assert once != twice
    assert b"secret" not in once


def test_what_was_moved_to_another_place_is_refused() -> None:
    """A value belongs to its key: tenant, run and step."""
    keyring = Keyring({"a": NEW})

    with pytest.raises(BrokenSealError):
        keyring.open(keyring.seal(b"secret", PLACE), b"there")


@pytest.mark.parametrize("expires_at", [None, 0, 6, 2**62])
def test_what_is_to_live_longer_or_shorter_is_refused(expires_at: int | None) -> None:
    """A value belongs to its expiry: whoever can write to the store cannot let a lease last."""
    keyring = Keyring({"a": NEW})
    sealed = keyring.seal(b"secret", PLACE, expires_at=5)

    assert keyring.open(sealed, PLACE, expires_at=5) == b"secret"
    with pytest.raises(BrokenSealError):
        keyring.open(sealed, PLACE, expires_at=expires_at)


def test_what_was_put_where_an_older_value_was_is_refused() -> None:
    """A value belongs to versions after the one that it was written over."""
    keyring = Keyring({"a": NEW})
    sealed = keyring.seal(b"secret", PLACE, after=7)

    assert keyring.open(sealed, PLACE, version=8) == b"secret"
    for version in (1, 7):
        with pytest.raises(BrokenSealError, match="newer than its record"):
            keyring.open(sealed, PLACE, version=version)


def test_each_value_is_sealed_with_a_key_of_its_own() -> None:
    """So it does not matter that nonces are random: nobody seals so many values that two have the same of both."""
    keyring = Keyring({"a": NEW})
    salts = {keyring.seal(b"", PLACE)[10:26] for _ in range(1_000)}

    assert len(salts) == 1_000
    assert MOST_VALUES >= 2**64


@pytest.mark.parametrize("accept_plain", [True, False])
def test_what_a_newer_version_has_sealed_is_no_plain_value(*, accept_plain: bool) -> None:
    """It is refused, with what to do."""
    with pytest.raises(BrokenSealError, match="newer version"):
        Keyring({"a": NEW}, accept_plain=accept_plain).open(b"sealed3:a:...", PLACE)


async def test_a_record_whose_expiry_or_version_was_changed_in_the_store_is_refused(tmp_path: Path) -> None:
    """Whoever can write to the database lets nothing last, and puts no newer value under an older version."""
    path, keyring = tmp_path / "store.db", Keyring({"a": NEW})
    async with sf.open(f"sqlite:///{path}", encryption=keyring) as space:
        lease, note = space.key("lease"), space.key("note")
        now = (await space.read(lease)).at
        first = await space.commit(Put(lease, b"1", expires_at=later(now, 60)), Put(note, b"1"))
        assert isinstance(first, Commit)
        await space.commit(Put(note, b"2", first.versions[note]))
    database = apsw.Connection(str(path))
    [(table,)] = database.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%expires_at%' AND type = 'table'")
    database.execute(f"UPDATE {table} SET expires_at = expires_at + 1 WHERE key = ?", (bytes(lease),))  # noqa: S608 -- a table of ours
    database.execute(f"UPDATE {table} SET version = ? WHERE key = ?", (first.versions[note], bytes(note)))  # noqa: S608 -- a table of ours
    database.close()
    async with sf.open(f"sqlite:///{path}", encryption=keyring) as space:
        for key in (lease, note):
            with pytest.raises(BrokenSealError):
                await space.read(key)


@pytest.mark.parametrize("position", [0, 9, 12, 20, 30, 40, -1])
def test_what_was_changed_is_refused(position: int) -> None:
    """One bit is enough."""
    keyring = Keyring({"a": NEW})
    sealed = bytearray(keyring.seal(b"secret", PLACE))
    sealed[position] ^= 1

    with pytest.raises((BrokenSealError, UnknownSealingKeyError)):
        keyring.open(bytes(sealed), PLACE)


def test_an_old_key_opens_and_the_current_one_seals() -> None:
    """Keys are changed by adding one: what is there stays readable, what is written uses the new one."""
    sealed = Keyring({"old": OLD}).seal(b"secret", PLACE)
    keyring = Keyring({"old": OLD, "new": NEW})

    assert keyring.open(sealed, PLACE) == b"secret"
    assert b":new:" in b":" + keyring.seal(b"x", PLACE).split(b":", 1)[1][:4]


def test_an_unknown_key_is_named() -> None:
    """So that whoever reads the error knows which one to add."""
    sealed = Keyring({"old": OLD}).seal(b"secret", PLACE)

    with pytest.raises(UnknownSealingKeyError, match="old"):
        Keyring({"new": NEW}).open(sealed, PLACE)


def test_a_plain_value_is_refused_unless_it_is_asked_for() -> None:
    """Somebody who can write to the store cannot put a value there."""
    with pytest.raises(BrokenSealError):
        Keyring({"a": NEW}).open(b"1:{}", PLACE)

    assert Keyring({"a": NEW}, accept_plain=True).open(b"1:{}", PLACE) == b"1:{}"


@pytest.mark.parametrize(
    ("keys", "options"),
    [({}, {}), ({"a": b"short"}, {}), ({"a:b": NEW}, {}), ({"a": NEW}, {"current": "b"}), ({"": NEW}, {})],
)
def test_a_keyring_that_cannot_work_is_refused(keys: dict[str, bytes], options: dict[str, Any]) -> None:
    """Before anything is read or written."""
    with pytest.raises(InvalidArgumentError):
        Keyring(keys, **options)


def test_a_keyring_does_not_show_its_keys() -> None:
    """Not in a log, and not in an error."""
    assert repr(NEW)[2:-1] not in repr(Keyring({"a": NEW}))


@sf.workflow
async def pay(ctx: sf.Context, card: str) -> str:
    """Return what must not be read from the file."""
    await ctx.wait_signal("go")
    return await ctx.step("charge", str.upper, card)


async def test_nothing_of_a_run_can_be_read_from_a_sealed_store(tmp_path: Path) -> None:
    """Input, signals, results of steps and of the run are sealed; the run works as always."""
    url, keyring = f"sqlite:///{tmp_path / 'sealed.db'}", Keyring({"a": NEW})
    async with sf.Engine(sf.open(url, encryption=keyring), workflows=[pay]) as engine:
        run = await engine.start(pay, "four-one-one")
        await run.signal("go", "the-word")

        assert await run.result(timeout=10) == "FOUR-ONE-ONE"

    content = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"sealed2:" in content
    assert not [word for word in (b"four-one-one", b"FOUR-ONE-ONE", b"the-word") if word in content]


async def test_a_value_of_another_tenant_is_refused() -> None:
    """Whoever can write to the store cannot give one tenant the values of another."""
    keyring = Keyring({"a": NEW})
    async with sf.open("memory://tenants", tenant="ann", encryption=keyring) as ann:
        await ann.commit(Put(ann.key("note"), b"hers"))
        async with sf.open("memory://tenants", tenant="bob", encryption=keyring) as bob:
            raw = await open_store("memory://tenants")
            hers = (await raw.read(RecordKey("default", "ann", "note"))).records
            [stolen] = hers.values()
            await raw.commit(Put(bob.key("note"), stolen.value))
            await raw.aclose()

            with pytest.raises(BrokenSealError):
                await bob.read(bob.key("note"))


async def test_a_sealed_store_without_its_keys_says_what_is_missing() -> None:
    """Not that something is damaged."""
    async with sf.open("memory://sealed-only", encryption=Keyring({"a": NEW})) as sealed:
        await sealed.state.shared("secret", type=int, initial=0).set(1)
        async with sf.open("memory://sealed-only") as plain:
            with pytest.raises(DecodeError, match="encryption="):
                await plain.state.shared("secret", type=int, initial=0).get()


def test_without_the_library_the_message_is_the_command_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks of encryption, and not of a store that would have such a scheme."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    said = 'encrypting a store needs what is not installed; run: pip install "standfast[encryption]"'
    with pytest.raises(MissingExtraError, match=f"^{re.escape(said)}$"):
        Keyring({"a": NEW})
