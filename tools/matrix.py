"""Run the tests on the other CPythons of this machine.

Nothing is downloaded: interpreters are found on PATH, in pyenv and among those that uv has installed. The heavy
tests and those on servers are left out; they run on the default interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
SPREAD = ("--numprocesses", "2", "--dist", "worksteal")
ON_NEWEST = ("tests/unit", "tests/replay", "tests/conformance/test_memory.py", "tests/conformance/test_sqlite.py")
"""What says most about an interpreter, in the time that ``.ci/run`` has; ``make test-matrix`` runs everything."""

NAMES = [f"python3.{minor}{kind}" for minor in range(11, 20) for kind in ("", "t")]
ASK = """
import json, platform, sys, sysconfig
kind = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(json.dumps([platform.python_implementation(), sys.version_info[:3], kind]))
"""


class Interpreter(NamedTuple):
    """A CPython of this machine; sorts by version, free-threaded builds after the ordinary ones."""

    version: tuple[int, ...]
    kind: str
    path: str

    @property
    def name(self) -> str:
        """Return what people call it: ``3.13`` or ``3.14t``."""
        return ".".join(map(str, self.version[:2])) + self.kind


def candidates() -> Iterator[Path]:
    """Yield the places where an interpreter may be."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenvs = {folder.parent for folder in folders if folder.name == "shims"}
    pyenvs |= {Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")}
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    local = ROOT / ".cache" / "pythons"
    for folder in folders:
        yield from (folder / name for name in NAMES if folder.name != "shims")
    for versions in [*(root / "versions" for root in pyenvs), managed, local]:
        yield from versions.glob("*/bin/python3.*")


def ask(path: Path) -> Interpreter | None:
    """Ask an executable what it is; None if it is no CPython that is new enough."""
    try:
        answer = subprocess.run([path, "-c", ASK], capture_output=True, check=True, timeout=20)
        implementation, version, kind = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    found = Interpreter(tuple(version), kind, str(path))
    return found if implementation == "CPython" and found.version >= OLDEST else None


def found() -> list[Interpreter]:
    """Return the newest patch release of each version on this machine, oldest version first."""
    paths = {path.resolve(): path for path in candidates() if path.is_file() and "config" not in path.name}
    answers = sorted(answer for path in paths if (answer := ask(path)))
    return sorted({answer.name: answer for answer in answers}.values())


def environment(interpreter: Interpreter) -> Path:
    """Make an environment with the pinned test dependencies, or reuse one that is up to date."""
    folder = ROOT / ".cache" / "envs" / interpreter.name
    pins = ROOT / "requirements" / "test.txt"
    ready = folder / ".ready"
    if not ready.exists() or ready.read_text() != interpreter.path + pins.read_text():
        uv = str(ROOT / "tools" / "uv")
        install = [uv, "pip", "install", "--quiet", "--python", str(folder)]
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", interpreter.path, folder], check=True)
        subprocess.run([*install, "--require-hashes", "--requirement", pins], check=True)
        constraints = ROOT / "requirements" / "build.txt"
        subprocess.run([*install, "--no-deps", "--build-constraints", constraints, "--editable", ROOT], check=True)
        ready.write_text(interpreter.path + pins.read_text())
    return folder


def run(interpreter: Interpreter, arguments: list[str]) -> bool:
    """Run the tests on one interpreter and tell whether they passed."""
    print(f"\n== CPython {'.'.join(map(str, interpreter.version))}{interpreter.kind}", flush=True)
    python = environment(interpreter) / "bin" / "python"
    chosen = "not heavy and not services and not thorough"
    command = [str(python), "-m", "pytest", "-m", chosen, *SPREAD, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    """Run the tests on all found interpreters but this one, or on the newest of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--newest", action="store_true", help="only the newest of them")
    options, arguments = parser.parse_known_args()
    here = sys.version_info[:2]
    others = [interpreter for interpreter in found() if interpreter.version[:2] != here or interpreter.kind]
    if not others:
        print(f"\n== no other CPython found: tested on {here[0]}.{here[1]} only")
    chosen = others[-1:] if options.newest else others
    if options.newest:
        arguments += ON_NEWEST
    failed = [interpreter.name for interpreter in chosen if not run(interpreter, arguments)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
