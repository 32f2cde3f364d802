"""What users get: a light import and a complete, typed package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
DRIVERS = ["apsw", "sqlite3", "asyncpg", "psycopg", "redis", "asyncmy", "pymongo", "aiobotocore", "libsql_client"]
TEST_TOOLS = ["pytest", "hypothesis", "_pytest"]


def ask(code: str, **environment: str) -> str:
    """Return what a fresh interpreter prints."""
    command = [sys.executable, "-P", "-c", code]
    return subprocess.check_output(command, text=True, env=os.environ | environment).strip()


def build(folder: Path) -> Path:
    """Build the sdist and the wheel into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist and the wheel, built once."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.parametrize(("load", "most"), [("import standfast", 50), ("from standfast import *", 250)])
def test_the_import_is_quick(tmp_path: Path, load: str, most: float) -> None:
    """The package, once compiled, loads in 50 ms of work, and with all its public names in 250, whatever else runs."""
    code = f"from time import process_time as t; a = t(); {load}; print((t() - a) * 1000)"
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert any(float(ask(code, **compiled)) < most for _ in range(10))


@pytest.fixture(scope="module")
def pulled_in() -> list[str]:
    """The modules that the package with all its public names pulls in, asked of one fresh interpreter."""
    return ask("import sys; from standfast import *; print(*sys.modules)").split()


@pytest.mark.parametrize("module", DRIVERS + TEST_TOOLS)
def test_the_import_pulls_in_no_driver_and_no_test_tool(pulled_in: list[str], module: str) -> None:
    """A driver is imported only when a URL that needs it is opened; test tools never."""
    assert "standfast" in pulled_in
    assert module not in pulled_in


def test_the_wheel_has_every_module_and_the_typing_marker(built: Path) -> None:
    """The wheel holds the whole package, ``py.typed`` and the licence, and nothing else."""
    [wheel] = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert names == {path.relative_to(SOURCE).as_posix() for path in files}
    assert "standfast/py.typed" in names


def test_the_sdist_can_be_built_and_tested_from(built: Path) -> None:
    """The sdist carries the tests, the docs and the pins, but nothing that make has made."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "tests/conftest.py", "requirements/dev.txt"} <= names
    assert not [name for name in names if name.startswith((".venv", ".cache", "docs/_build"))]


def test_the_wheel_works_on_its_own(built: Path) -> None:
    """The package imports from the wheel, without the source tree."""
    [wheel] = built.glob("*.whl")
    place = ask("import standfast; print(standfast.__file__)", PYTHONPATH=str(wheel))
    assert Path(place).is_relative_to(wheel)


def test_the_version_is_written_once(built: Path) -> None:
    """The version in pyproject.toml is the one that is built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [path.name.split("-")[1] for path in built.glob("*.whl")] == [project["version"]]


def test_the_same_tree_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Anybody can build the release again and compare."""
    again = {path.name: path.read_bytes() for path in build(tmp_path).iterdir()}
    assert again == {path.name: path.read_bytes() for path in built.iterdir()}


def test_the_bill_of_materials_lists_every_dependency_with_its_hashes() -> None:
    """What a release is made of is what is pinned for run time."""
    shown = json.loads(subprocess.check_output([sys.executable, ROOT / "tools" / "sbom.py"], text=True))
    listed = {each["name"]: each["version"] for each in shown["components"] if each["scope"] == "required"}
    assert listed == pins("run")
    assert all(each["externalReferences"][0]["hashes"] for each in shown["components"])


def test_the_bill_of_materials_has_everything_that_faces_the_network() -> None:
    """Servers, parsers and drivers are extras: each is listed, with what it needs, in the version that is tested."""
    shown = json.loads(subprocess.check_output([sys.executable, ROOT / "tools" / "sbom.py"], text=True))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {(each["name"], fact["value"]) for each in shown["components"] for fact in each["properties"]}
    asked = {
        (re.split(r"[^\w.-]", each)[0], extra)
        for extra, needed in project["optional-dependencies"].items()
        for each in needed
    }
    listed = {each["name"]: each["version"] for each in shown["components"]}

    assert named == asked
    assert listed.items() <= pins("test").items()
    assert {
        "uvicorn",
        "starlette",
        "httptools",
        "websockets",
        "mcp",
        "h11",
        "anyio",
        "asyncpg",
        "hiredis",
    } <= listed.keys()


def pins(name: str) -> dict[str, str]:
    """Return the versions that a file of requirements pins."""
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements" / f"{name}.txt").read_text()))


def test_errors_are_found_on_a_fresh_import() -> None:
    """``sf.errors`` needs no import of its own, and the root of all errors is at the top."""
    code = "import standfast as sf; print(sf.errors.StandfastError is sf.StandfastError, sf.StandfastError.__name__)"
    assert ask(code) == "True StandfastError"
