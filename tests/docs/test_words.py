"""The words of the documentation: plain, and few enough to learn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tools import words

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_TERMS: Final = 45


def test_the_glossary_can_be_learnt() -> None:
    """One word a concept, and no more of them than a reader keeps in mind."""
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^([a-z ]+)\n  \S", text, re.MULTILINE)
    assert len(set(terms)) == len(terms) <= MOST_TERMS


@pytest.mark.parametrize("text", ["Nobody waits.", "those\nwho wait", "it turned out", "looks after it", "was buried"])
def test_a_word_that_is_not_plain_is_found(text: str) -> None:
    """In any form, and across the end of a line."""
    assert [number for number, _ in words.words_of_page(text)] == [1]


@pytest.mark.parametrize("text", ["nobody <!-- word: a quote -->", "adr/0040-nobody-is-granted.md", "everybody"])
def test_a_reason_or_a_name_lets_a_word_stand(text: str) -> None:
    """A reason beside it, and parts of file names."""
    assert list(words.words_of_page(text)) == []


def test_strings_and_comments_of_code_are_read_and_names_are_not() -> None:
    """A docstring needs its reason where it ends."""
    code = '"""Tell whether it is so."""\nnobody = 1  # somebody\n"""whoever"""  # word: a test\n'
    assert list(words.words_of_module(code)) == [(1, "Tell whether"), (2, "somebody")]


@pytest.mark.parametrize("word", ["whoever", "Somebody else", "told whether", "turning out", "be had", "buries"])
def test_each_word_has_a_better_one(word: str) -> None:
    """The message says what to write."""
    assert words.instead_of(word)
