"""Moving a store on the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import StoreMovedError
from standfast.stores import Put

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Ask


@pytest.fixture
async def noted(space: sf.Space) -> sf.Space:
    """The store, with two records in it."""
    await space.commit(Put(space.key("note"), b"one"), Put(space.key("another"), b"two"))
    return space


async def test_a_store_is_moved_to_another_one(ask: Ask, noted: sf.Space, tmp_path: Path) -> None:
    """Everything is there under the new URL, and the old store says that it was moved."""
    new = f"sqlite:///{tmp_path / 'new.db'}"
    exported = await ask("export", str(tmp_path / "all.jsonl"), "--yes")
    imported = await ask("import", str(tmp_path / "all.jsonl"), "--store", new)

    assert (exported.exit_code, exported.output) == (0, "exported 6 records; the store takes no more writes\n")
    assert (imported.exit_code, imported.output) == (0, "imported 6 records; the store is in use from now on\n")
    with pytest.raises(StoreMovedError):
        await noted.commit(Put(noted.key("late"), b""))
    async with sf.open(new) as space:
        assert (await space.read(space.key("note"))).records == (await noted.read(noted.key("note"))).records


async def test_a_program_gets_json(ask: Ask, noted: sf.Space, tmp_path: Path) -> None:
    """How many records, the highest version, and the sum that the file must have."""
    note = await noted.read(noted.key("note"))
    file, new = tmp_path / "all.jsonl", f"sqlite:///{tmp_path / 'new.db'}"
    exported = json.loads((await ask("export", str(file), "--yes", "--json")).output)
    imported = json.loads((await ask("import", str(file), "--json", "--store", new)).output)

    assert exported["records"] == imported["records"] == 6
    assert exported["highest_version"] == imported["highest_version"] >= note.version(noted.key("note"))
    assert exported["sha256"] == json.loads(file.read_bytes().splitlines()[-1])["sha256"]


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize(
    "arguments", [("export", "{file}", "--namespace", "shop"), ("--namespace=shop", "export", "{file}")]
)
async def test_one_namespace_is_exported(ask: Ask, url: str, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """With all of its tenants, and nothing of the others."""
    file, new = str(tmp_path / "shop.jsonl"), f"sqlite:///{tmp_path / 'new.db'}"
    async with sf.open(url, namespace="shop", tenant="a") as shop:
        await shop.commit(Put(shop.key("sold"), b"three"))

    exported = await ask(*(part.format(file=file) for part in arguments), "--yes")
    await ask("import", file, "--store", new)

    assert exported.output.startswith("exported 1 records")
    async with sf.open(new, namespace="shop", tenant="a") as shop, sf.open(new) as other:
        assert (await shop.read(shop.key("sold"))).get(shop.key("sold"))
        assert not (await other.read(other.key("note"))).records


async def test_a_namespace_with_nothing_in_it_is_not_exported(ask: Ask, noted: sf.Space, tmp_path: Path) -> None:
    """Its name was mistyped: no file is left, and the store is in use as before."""
    refused = await ask("export", str(tmp_path / "shop.jsonl"), "--namespace", "shpo", "--yes")

    assert refused.exit_code == 1
    assert "'shpo'" in refused.output
    assert list(tmp_path.glob("*shop*")) == []
    await noted.commit(Put(noted.key("next"), b""))


@pytest.mark.usefixtures("noted")
async def test_a_store_is_moved_through_a_pipe(ask: Ask, tmp_path: Path) -> None:
    """The dash stands for stdout, and for stdin."""
    exported = await ask("export", "-", "--yes")
    imported = await ask("import", "-", "--store", f"sqlite:///{tmp_path / 'new.db'}", typed=exported.stdout)

    assert exported.stdout.startswith('{"line":"standfast export"')
    assert "exported 6 records" in exported.stderr
    assert (imported.exit_code, imported.output[:18]) == (0, "imported 6 records")


async def test_a_file_that_is_there_is_not_written_over(ask: Ask, noted: sf.Space, tmp_path: Path) -> None:
    """Neither is the store frozen."""
    (tmp_path / "all.jsonl").write_text("mine")

    refused = await ask("export", str(tmp_path / "all.jsonl"), "--yes")

    assert refused.exit_code == 1
    assert "is there already" in refused.output
    assert (tmp_path / "all.jsonl").read_text() == "mine"
    await noted.commit(Put(noted.key("next"), b""))


async def test_a_file_that_cannot_be_written_leaves_the_store_in_use(ask: Ask, noted: sf.Space, tmp_path: Path) -> None:
    """Nothing was moved."""
    refused = await ask("export", str(tmp_path / "nowhere" / "all.jsonl"), "--yes")

    assert refused.exit_code == 1
    assert "cannot be written" in refused.output
    await noted.commit(Put(noted.key("next"), b""))


@pytest.mark.usefixtures("noted")
async def test_a_file_that_was_cut_is_refused(ask: Ask, tmp_path: Path) -> None:
    """Nothing is written, and the message says what happened to it."""
    file = tmp_path / "all.jsonl"
    await ask("export", str(file), "--yes")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))

    refused = await ask("import", str(file), "--store", f"sqlite:///{tmp_path / 'new.db'}")

    assert refused.exit_code == 1
    assert "its end is missing" in refused.output
    assert "Traceback" not in refused.output


async def test_a_missing_file_is_refused(ask: Ask, tmp_path: Path) -> None:
    """It says which."""
    refused = await ask("import", str(tmp_path / "nothing"))

    assert (refused.exit_code, "cannot be read" in refused.output) == (1, True)


@pytest.mark.usefixtures("noted")
async def test_a_store_with_records_is_no_target(ask: Ask, tmp_path: Path) -> None:
    """It stays as it is."""
    file, new = tmp_path / "all.jsonl", f"sqlite:///{tmp_path / 'new.db'}"
    await ask("export", str(file), "--yes")
    async with sf.open(new) as space:
        await space.commit(Put(space.key("mine"), b""))

    refused = await ask("import", str(file), "--store", new)

    assert refused.exit_code == 1
    assert "import into an empty store" in refused.output


@pytest.mark.usefixtures("noted")
async def test_without_a_terminal_an_export_must_be_meant(ask: Ask, tmp_path: Path) -> None:
    """It stops everybody who writes."""
    refused = await ask("export", str(tmp_path / "all.jsonl"))

    assert (refused.exit_code, "--yes" in refused.output) == (2, True)


async def test_an_exported_store_is_thawed(ask: Ask, noted: sf.Space, tmp_path: Path) -> None:
    """It takes writes again; one that is not frozen has nothing to be thawed."""
    await ask("export", str(tmp_path / "all.jsonl"), "--yes")

    thawed, again = await ask("thaw", "--yes"), await ask("thaw", "--yes")

    assert (thawed.exit_code, thawed.output) == (0, "the store takes writes again\n")
    assert (again.exit_code, "not frozen" in again.output) == (3, True)
    await noted.commit(Put(noted.key("next"), b""))


async def test_everybody_is_fenced(ask: Ask, space: sf.Space) -> None:
    """Who held something is told to be gone, with numbers for programs."""
    async with space.mutex("k").hold(on_lost="tell"):
        told = json.loads((await ask("fence", "--yes", "--json")).output)

    assert (told["presences"], told["workers"]) == (1, 0)


async def test_there_must_be_a_store_to_export(ask: Ask, tmp_path: Path) -> None:
    """None is made for it."""
    for command in (("export", str(tmp_path / "all.jsonl"), "--yes"), ("thaw", "--yes"), ("fence", "--yes")):
        refused = await ask(*command)
        assert (refused.exit_code, "there is no store" in refused.output) == (1, True)
    assert list(tmp_path.iterdir()) == []
