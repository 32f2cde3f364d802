"""Write what a release is made of, as a CycloneDX bill of materials: ``python tools/sbom.py > standfast.cdx.json``.

It lists the run-time dependencies as they are pinned, with the hashes of every file that may be installed. It names no
registry and no time, so that the same tree gives the same bytes.
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


def components(pins: str) -> list[dict[str, Any]]:
    """Return a component for each pin, with the hashes that it allows."""
    return [
        {
            "type": "library",
            "name": pin["name"],
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


def bill(root: Path = ROOT) -> dict[str, Any]:
    """Return the bill of materials of the tree."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
        "components": components((root / "requirements" / "run.txt").read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=2)
    sys.stdout.write("\n")
