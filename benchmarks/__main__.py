"""Run all subjects, or the named ones: ``python -m benchmarks local``. With ``--strict`` a missed bar is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def subjects() -> list[str]:
    """Return every program in this folder that measures a subject of its own."""
    programs = (path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return sorted(name for name in programs if name != "harness" and not name.endswith("_peers"))


def main(arguments: list[str]) -> int:
    """Run each subject in a process of its own, so that none warms up or litters the next one."""
    strict = "--strict" in arguments
    wanted = [name for name in arguments if name != "--strict"] or subjects()
    if unknown := set(wanted) - set(subjects()):
        print(f"there is no subject {', '.join(sorted(unknown))}; choose from {', '.join(subjects())}", file=sys.stderr)
        return 2
    codes: list[int] = []
    for name in wanted:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--strict"] if strict else [])]
        codes.append(subprocess.run(command, cwd=FOLDER.parent, check=False).returncode)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
