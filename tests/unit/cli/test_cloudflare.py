"""``standfast cloudflare init``: the project to deploy."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from standfast.cli import application
from standfast.cli.cloudflare import worker_source
from standfast.stores.cloudflare import connection

if TYPE_CHECKING:
    from pathlib import Path


def init(*arguments: str) -> Any:
    """Run the command."""
    return CliRunner().invoke(application, ["cloudflare", "init", *arguments])


def settings(folder: Path) -> Any:
    """Return the settings of wrangler without their comments."""
    text = (folder / "wrangler.jsonc").read_text(encoding="utf-8")
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def test_the_settings_name_what_the_worker_has(tmp_path: Path) -> None:
    """Class, binding and file are those of the worker; its class has a SQLite database, and no build is needed."""
    assert init(str(tmp_path / "store"), "--name", "locks").exit_code == 0
    found, worker = settings(tmp_path / "store"), (tmp_path / "store" / "worker.js").read_text(encoding="utf-8")

    assert worker == worker_source()
    [binding] = found["durable_objects"]["bindings"]
    assert f"export class {binding['class_name']} extends DurableObject" in worker
    assert f"env.{binding['name']}.get(" in worker
    assert found["migrations"] == [{"tag": "v1", "new_sqlite_classes": [binding["class_name"]]}]
    assert (found["name"], found["main"], found["no_bundle"]) == ("locks", "worker.js", True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["compatibility_date"])
    assert set(re.findall(r'from "([^"]+)"', worker)) == {"cloudflare:workers"}


def test_the_worker_speaks_the_protocol_of_this_version() -> None:
    """Both sides are raised together."""
    assert f"const PROTOCOL = {connection.PROTOCOL};" in worker_source()
    assert f"const LEAST_SECRET = {connection.LEAST_SECRET};" in worker_source()


def test_a_second_time_replaces_the_worker_and_nothing_else(tmp_path: Path) -> None:
    """So that a newer version is deployed with one's own settings."""
    init(str(tmp_path))
    for name in ("worker.js", "wrangler.jsonc"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    told = json.loads(init(str(tmp_path), "--json").stdout)

    assert {each["file"]: each["did"] for each in told["files"]} == {
        "worker.js": "replaced",
        "wrangler.jsonc": "kept",
        "README.md": "unchanged",
        ".gitignore": "unchanged",
    }
    assert "npx wrangler deploy" in told["next"]
    assert (tmp_path / "worker.js").read_text(encoding="utf-8") == worker_source()
    assert (tmp_path / "wrangler.jsonc").read_text(encoding="utf-8") == "mine"


def test_no_secret_is_written_and_the_place_for_one_is_ignored_by_git(tmp_path: Path) -> None:
    """A project is committed; its secrets are not."""
    init(str(tmp_path))

    assert ".dev.vars" in (tmp_path / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "SECRET" not in json.dumps(settings(tmp_path))


@pytest.mark.parametrize("name", ["Locks", "-a", "a-", "a_b", "", "a" * 64])
def test_a_name_that_no_host_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """Before anything is written."""
    assert init(str(tmp_path / "store"), "--name", name).exit_code == 2
    assert not (tmp_path / "store").exists()


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    """With its name, and without a traceback."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = init(str(tmp_path / "file" / "store"))

    assert result.exit_code in {1, 2}
    assert "file" in result.output
