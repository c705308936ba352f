"""Identifiers have the words of the glossary.

What is not mended yet is counted in `retired_words.json`, a number for each word that may only fall: mend some, then
`python -m tests.kit.docs.words --lower`. An empty list is the aim.
"""

import json

import pytest

from tests.kit.docs.words import NOT_MENDED, counts, offenders, retired, split


def test_no_retired_word_comes_back() -> None:
    allowed: dict[str, int] = json.loads(NOT_MENDED.read_text())
    more = {word: number for word, number in counts().items() if number > allowed.get(word, 0)}
    where = "\n".join(f"{f.file}:{f.line}: {f.name}" for f in offenders() if f.word in more)
    assert not more, f"retired words, see docs/glossary.md: {more}\n{where}"


def test_only_retired_words_are_listed() -> None:
    assert set(json.loads(NOT_MENDED.read_text())) <= retired()[0]


def test_the_glossary_is_read() -> None:
    words, allowed = retired()
    assert {"bell", "wish", "feed", "take", "let_go", "Instead"} <= words
    assert "look_up" in allowed
    assert not words & allowed


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("ForwardMark", ["forward", "mark"]),
        ("_let_go", ["let", "go"]),
        ("HTTPServer", ["http", "server"]),
        ("TAKE_MAX", ["take", "max"]),
        ("lookup", ["lookup"]),
        ("bookmark", ["bookmark"]),
        ("http2Door", ["http", "2", "door"]),
    ],
)
def test_identifiers_are_split_into_words(identifier: str, words: list[str]) -> None:
    assert split(identifier) == words
