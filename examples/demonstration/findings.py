"""What a scene found out: a promise, what was seen of it, and whether it was kept."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demonstration.screen import Screen


@dataclass(frozen=True)
class Finding:
    """A promise of Standfast, checked against what has just happened."""

    promise: str
    seen: str
    kept: bool


@dataclass
class Report:
    """Everything that was found, and the figures behind it."""

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, promise: str, seen: str, *, kept: bool) -> None:
        """Write down a finding."""
        self.findings.append(Finding(promise, seen, kept))

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return bool(self.findings) and all(finding.kept for finding in self.findings)

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {
            "kept": self.kept,
            "findings": [asdict(finding) for finding in self.findings],
            "figures": {name: round(figure, 4) for name, figure in self.figures.items()},
        }


def explain(report: Report, screen: Screen) -> None:
    """Say what was seen and which promise each line shows."""
    screen.say("", screen.paint("What you saw, and the promise behind it", "bold"), "")
    for finding in report.findings:
        mark = screen.paint(screen.glyphs.kept, "green") if finding.kept else screen.paint(screen.glyphs.broken, "red")
        seen = textwrap.wrap(finding.seen, screen.width - 4)
        screen.say(f" {mark} {screen.paint(finding.promise, 'bold')}", *(f"   {line}" for line in seen))
    screen.say("")
