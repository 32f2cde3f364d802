"""The corpus: workflows of every shape, distinct by what their histories consist of."""

from __future__ import annotations

from typing import Final

from tests.workflows_corpus import of_branches, of_families, of_locks, of_steps, of_waits

CORPUS: Final = (*of_steps.SHAPES, *of_waits.SHAPES, *of_branches.SHAPES, *of_families.SHAPES, *of_locks.SHAPES)
