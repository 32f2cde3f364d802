"""The page of figures says what was measured."""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks._figures import refreshed
from benchmarks.harness import FIGURES, RESULTS

PAGE: Final = FIGURES.read_text(encoding="utf-8")
MEASURED: Final = RESULTS.read_text(encoding="utf-8")


def test_the_page_of_figures_has_those_of_the_results() -> None:
    """Filled again from the results, the page stays as it is."""
    assert refreshed(PAGE, MEASURED) == PAGE


def test_a_figure_that_changes_in_the_results_changes_on_the_page() -> None:
    """A row is taken from the results by its name, and a bar that is missed is listed."""
    row = "hold a free key (ns)"
    before = next(line for line in MEASURED.splitlines() if line.startswith(f"| {row}"))
    after = f"| {row} | 1 | - | 987,654 | 9.99 | ≤ 1.3 x the limit | **no** |"
    page = refreshed(PAGE, MEASURED.replace(before, after))
    assert f"| {row} | 1 | 987,654 | 9.99 |" in page
    assert f"| local | {row} | ≤ 1.3 x the limit | 9.99 |" in page


def test_a_row_that_is_no_longer_measured_is_noticed() -> None:
    """The page cannot go on with a figure that no command gives."""
    with pytest.raises(KeyError, match="no such row"):
        refreshed("<!-- from local -->\n\n| | limit |\n|---|---|\n| no such row | 1 |\n", MEASURED)
