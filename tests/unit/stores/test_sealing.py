"""Values are sealed with a key, for one place: who has neither can neither read nor move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import BrokenSealError, DecodeError, InvalidKeyringError, UnknownSealingKeyError
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.opening import open_store
from standfast.stores.sealing import Keyring

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


@pytest.mark.parametrize("position", [0, 9, 12, 20, 30, -1])
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
    with pytest.raises(InvalidKeyringError):
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
    async with sf.Engine(url, workflows=[pay], encryption=keyring) as engine:
        run = await engine.start(pay, "four-one-one")
        await run.signal("go", "the-word")

        assert await run.result(timeout=10) == "FOUR-ONE-ONE"

    content = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"sealed1:" in content
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
