"""What is fetched for the tests is exactly what was chosen."""

from __future__ import annotations

import re

import pytest

from tests.services.places import ROOT

PINS = ROOT / "requirements"


def test_every_server_from_npm_has_a_version_and_a_hash() -> None:
    """An archive is known by its bytes."""
    lines = (PINS / "services-npm.pins").read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"@[\w/-]+@\d[\w.-]+ sha512-[\w+/]{86}==", line), line


FILES = ["services-debian.pins", "services-prometheus.pins", "services-proxies.pins", "services-terminal.pins"]


@pytest.mark.parametrize("pins", FILES)
def test_every_server_from_debian_has_a_version(pins: str) -> None:
    """Debian's mirrors keep one build of a version: the version is pinned, the build may have been repaired."""
    lines = (PINS / pins).read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w-]+=(\d:)?\d+\.\d+(\.[\d.-]*)?\*", line), line
