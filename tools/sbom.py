"""Write what a release is made of, as a CycloneDX bill of materials: ``python tools/sbom.py > standfast.cdx.json``.

It lists what a plain installation needs and what the extras add, as it is pinned, with the hashes of every file that
may be installed. Servers, parsers and drivers, which face the network, are all among the extras: those are marked
optional, and say which extras ask for them. It names no registry and no time, so the same tree gives the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?P<rest>(?:.*\\\n)*.*)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def components(pins: str, needed: frozenset[str], extras: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return a component for each pin, with the hashes that it allows.

    Args:
        pins: All of them, as a file of requirements.
        needed: The names of those that a plain installation needs.
        extras: Which extras name a library, by its name.
    """
    return [
        {
            "type": "library",
            "name": pin["name"],
            "scope": "required" if pin["name"] in needed else "optional",
            "properties": [{"name": "standfast:extra", "value": extra} for extra in extras.get(pin["name"], [])],
            "version": pin["version"],
            "purl": f"pkg:pypi/{pin['name']}@{pin['version']}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"pkg:pypi/{pin['name']}@{pin['version']}",
                    "hashes": [{"alg": "SHA-256", "content": digest} for digest in HASH.findall(pin["rest"])],
                }
            ],
        }
        for pin in PIN.finditer(pins)
    ]


def name_of(requirement: str) -> str:
    """Return the name of a library that is asked for: ``pyjwt`` for ``pyjwt[crypto]>=2.10``."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def bill(root: Path = ROOT) -> dict[str, Any]:
    """Return the bill of materials of the tree."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = (root / "requirements" / "run.txt").read_text(encoding="utf-8")
    extras: dict[str, list[str]] = {}
    for extra, asked in project["optional-dependencies"].items():
        for name in map(name_of, asked):
            extras.setdefault(name, []).append(extra)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components(
            (root / "requirements" / "extras.txt").read_text(encoding="utf-8"),
            frozenset(pin["name"] for pin in PIN.finditer(pinned)),
            extras,
        ),
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=2)
    sys.stdout.write("\n")
