"""The page of figures, filled from the results: no figure of it is written by hand.

A table of the page that follows ``<!-- from workflows -->`` has rows of that subject's table in the results, chosen by
their first cell. The bars that are missed are listed between ``<!-- missed begins -->`` and ``<!-- missed ends -->``.
"""

from __future__ import annotations

import re
from typing import Final

HEADINGS: Final = ["", "limit", "peers", "Standfast", "ratio", "bar", "met?"]
HEADING: Final = "| | limit | Standfast | ratio | aim | peers |\n|---|---|---|---|---|---|"


def table_rows(results: str, subject: str) -> list[list[str]]:
    """Return the rows of a subject's table in the results as cells; tables of another form are passed over."""
    section = results.partition(f"<!-- {subject} begins -->")[2].partition(f"<!-- {subject} ends -->")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return rows[2:] if rows and rows[0] == HEADINGS else []


def refreshed(page: str, results: str) -> str:
    """Return the page with the figures of the results.

    Raises:
        KeyError: The page has a row that the results do not have.
    """

    def table(found: re.Match[str]) -> str:
        known = {cells[0]: cells for cells in table_rows(results, found["subject"])}
        chosen = [known[line.strip("|").partition(" | ")[0].strip()] for line in found["rows"].splitlines()]
        lines = [
            f"| {what} | {limit} | {ours} | {ratio} | {aim} | {peers} |".replace(" - ", " ").replace(" - ", " ")
            for what, limit, peers, ours, ratio, aim, _ in chosen
        ]
        return "\n".join([f"<!-- from {found['subject']} -->", "", HEADING, *lines, ""])

    marked = r"<!-- from (?P<subject>\w+) -->\n\n\|.*\n\|-.*\n(?P<rows>(?:\| .*\n)+)"
    begin, end = "<!-- missed begins -->", "<!-- missed ends -->"
    filled = re.sub(marked, table, page)
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{_missed(results)}\n\n{end}", filled, flags=re.DOTALL)


def _missed(results: str) -> str:
    """Return how many bars are met, and which are not."""
    rows = [
        (subject, cells)
        for subject in re.findall(r"<!-- (\w+) begins -->", results)
        for cells in table_rows(results, subject)
        if cells[-1] != "-"
    ]
    missed = [f"| {subject} | {cells[0]} | {cells[5]} | {cells[4]} |" for subject, cells in rows if cells[-1] != "yes"]
    said = f"Aims were set before measuring. {len(rows) - len(missed)} of {len(rows)} are met"
    if not missed:
        return f"{said}."
    return "\n".join([f"{said}; these are not:", "", "| subject | row | aim | reached |", "|---|---|---|---|", *missed])
