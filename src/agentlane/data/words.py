"""Words: how a text is cut into what search compares, the same on every backend, whatever a database would make of it.

A word is a run of letters, digits and the marks on them. Case and accents do not count (``Café`` is ``cafe``, ``ﬁn`` is
``fin``), and everything else parts words: ``read_file`` is two. Scripts that put no spaces between words (Chinese,
Japanese, Korean, Thai, Lao, Khmer, Burmese) are taken character by character and pair by pair. A word has only ASCII
letters and digits, and characters beyond ASCII: nothing in it means anything to a database.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

WORD_CHARS_MAX = 64
"""Of a longer word only so much is compared."""
WORDING = f"1/{unicodedata.unidata_version}"
"""Which words a text has depends on this: on what is written here, and on the version of Unicode that Python knows."""

_ASCII_WORD = re.compile("[0-9a-z]+")
_RUN = re.compile("w+|c+")
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x11FF), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x318F), (0x31F0, 0x31FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFF66, 0xFFDC), (0x20000, 0x3FFFF)),
)
"""First and last characters of the scripts that put no spaces between words."""


class Word(NamedTuple):
    """A word of a text, and the characters of the text that it stands for."""

    word: str
    start: int
    end: int


def words_of(text: str) -> list[str]:
    """The words of a text in their order; a run of a script without spaces gives its characters, then their pairs."""
    if text.isascii():
        return [word[:WORD_CHARS_MAX] for word in _ASCII_WORD.findall(text.lower())]
    words: list[str] = []
    shapes = text.translate(_shapes)
    for run in _RUN.finditer(shapes):
        start, end = run.span()
        if shapes[start] == "w":
            word = _folded(text[start:end])
            if word:
                words.append(word)
        else:
            chars = _folded_chars(text[start:end])
            words += chars
            words += [one + other for one, other in pairwise(chars)]
    return words


def placed_words(text: str) -> Iterator[Word]:
    """The same words, each with its place."""
    shapes = text.translate(_shapes)
    for run in _RUN.finditer(shapes):
        start, end = run.span()
        if shapes[start] == "w":
            word = _folded(text[start:end])
            if word:
                yield Word(word, start, end)
        else:
            chars = _folded_chars(text[start:end])
            yield from (Word(char, start + i, start + i + 1) for i, char in enumerate(chars))
            yield from (Word(one + other, start + i, start + i + 2) for i, (one, other) in enumerate(pairwise(chars)))


def wanted_words(text: str) -> list[str]:
    """The different words to look for when somebody types ``text``, in their order.

    Of a run in a script without spaces these are its pairs, or its one character.
    """
    words: dict[str, None] = {}
    shapes = text.translate(_shapes)
    for run in _RUN.finditer(shapes):
        start, end = run.span()
        if shapes[start] == "w":
            word = _folded(text[start:end])
            if word:
                words[word] = None
        else:
            chars = _folded_chars(text[start:end])
            words.update((one + other, None) for one, other in pairwise(chars))
            if len(chars) == 1:
                words[chars[0]] = None
    return list(words)


class _Shapes(dict[int, str]):
    """What each character is to a word, found out when it is first met: ``w`` part of one, ``c`` one by itself."""

    def __missing__(self, code: int) -> str:
        shape = self[code] = _shape(chr(code))
        return shape


def _shape(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cf":  # not to be seen, and inside words: soft hyphens, joiners
        return "w"
    if not (char.isalnum() or category[0] == "M"):
        return " "
    code = ord(char)
    return "c" if any(first <= code <= last for first, last in _UNSPACED) else "w"


_shapes = _Shapes()


def _folded(word: str) -> str:
    if word.isascii():
        return word.lower()[:WORD_CHARS_MAX]
    return _folded_text(word[: 4 * WORD_CHARS_MAX])


@lru_cache(maxsize=8192)
def _folded_text(word: str) -> str:
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", word).casefold())
    return "".join(char for char in text if _counts(char))[:WORD_CHARS_MAX]


def _folded_chars(run: str) -> list[str]:
    return [_folded_char(char) for char in run]


@lru_cache(maxsize=8192)
def _folded_char(char: str) -> str:
    """Marks stay: in these scripts they make another character."""
    text = unicodedata.normalize("NFKC", char).casefold()
    return "".join(each for each in text if each.isalnum() or not each.isascii()) or char


def _counts(char: str) -> bool:
    if char.isascii():
        return char.isalnum()
    return not unicodedata.combining(char) and unicodedata.category(char) != "Cf"
