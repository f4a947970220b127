"""The part between two lines ``---`` at the head of a Markdown file: the few texts of it that are used here.

It is YAML, of which a name and a description need little: one text each. That little is read here, strictly, where a
library would be a dependency for two lines: what YAML would read as anything but a text is refused with its line, where
it would silently become a number, a list or half of a sentence. What belongs to other keys is passed over unread,
however deep: such files are shared with other programs, which have keys of their own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FENCE = "---"

_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#:,?\[\]{}&*!|>%@`-](?:[^:]|:(?![ ]|$))*?):(?:[ ]+(.*))?"""
)
_OPEN = ("[", "{")
_HEADER = re.compile(r"[|>](?:[+-]?[1-9]?|[1-9][+-])(?:[ ]+#.*)?")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "0": "\0", " ": " "}
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SINGLE = re.compile(r"'((?:[^']|'')*)'")
_NOT_TEXT = ("[", "{", "&", "*", "!", "%", "@", "`", "]", "}", ",", "|", ">", "- ", "? ", ": ")
_NULL = ("~", "null", "Null", "NULL")


class Malformed(Exception):
    """The file is not what it should be in this line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


class Frontmatter(NamedTuple):
    """The texts that were asked for, each on one line, with the lines they begin in; and what stands behind."""

    texts: dict[str, str]
    lines: dict[str, int]
    body: str
    body_line: int


class _Value(NamedTuple):
    line: int
    head: str
    rest: list[str]


def decoded(content: bytes) -> str:
    """The text of a file, its lines ended by ``\\n``; ``Malformed`` for bytes that are not UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Malformed(line, "it is not UTF-8 text") from error
    return text.replace("\r\n", "\n")


def read_frontmatter(text: str, wanted: tuple[str, ...], *, required: bool) -> Frontmatter:
    """The ``wanted`` keys that are there; a file without frontmatter is all body, unless it is ``required``."""
    lines = text.split("\n")
    if lines[0].rstrip() != FENCE:
        if required:
            raise Malformed(
                1, f"the first line must be {FENCE!r}: `name` and `description` stand between two such lines"
            )
        return Frontmatter({}, {}, *_trimmed(lines, 0))
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == FENCE), None)
    if end is None:
        raise Malformed(1, f"the {FENCE!r} of this line has no other one that ends it")
    values = _values(lines[1:end])
    texts = {key: _text(key, values[key]) for key in wanted if key in values}
    return Frontmatter(texts, {key: values[key].line for key in texts}, *_trimmed(lines, end + 1))


def _trimmed(lines: list[str], start: int) -> tuple[str, int]:
    """The lines from ``start`` on without blank ones at the ends, and the number of the first."""
    while start < len(lines) and not lines[start].strip():
        start += 1
    return "\n".join(lines[start:]).rstrip(), start + 1


def _values(lines: list[str]) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    current: _Value | None = None
    for number, line in enumerate(lines, start=2):
        if line.startswith("\t"):
            raise Malformed(number, "it begins with a tab; YAML is indented by spaces")
        if not line.strip() or line.startswith((" ", "- ")) or line == "-":
            if current is not None:
                current.rest.append(line)
            elif line.strip() and not line.lstrip().startswith("#"):
                raise Malformed(number, "it is indented and belongs to no key")
            continue
        if line.startswith("#"):
            continue
        if current is not None and current.head.startswith(_OPEN) and line.rstrip() in ("]", "}"):
            continue  # as formatters end a list of others; what it began is no text already
        found = _KEY.fullmatch(line.rstrip())
        if found is None:
            raise Malformed(number, f"a line `key: value` is needed here, not {_shown(line)}")
        key = found[1].rstrip()
        if key in values:
            raise Malformed(number, f"{key!r} is there already, in line {values[key].line}")
        current = values[key] = _Value(number, (found[2] or "").strip(), [])
    return values


def _text(key: str, value: _Value) -> str:
    """The text of one key, its lines joined."""
    line, head, rest = value
    for number, each in enumerate(rest, start=line + 1):
        if each.startswith("-"):
            raise Malformed(number, f"{key}: this is a list, and a text is needed; put it in quotes")
    if head.startswith(("|", ">")):
        if _HEADER.fullmatch(head) is None:
            raise Malformed(line, f"{key}: {_shown(head)} begins a block of lines and has more than that in its line")
        return _joined(_block(key, line, head, rest))
    pieces = [(line, head)] if head and not head.startswith("#") else []
    pieces += [(number, each.strip()) for number, each in enumerate(rest, start=line + 1)]
    while pieces and (not pieces[-1][1] or pieces[-1][1].startswith("#")):
        pieces.pop()
    while pieces and (not pieces[0][1] or pieces[0][1].startswith("#")):
        pieces.pop(0)
    if not pieces:
        return ""
    first = pieces[0][1]
    if first.startswith(('"', "'")):
        return _quoted(key, pieces[0][0], "\n".join(each for _, each in pieces))
    return _plain(key, pieces)


def _block(key: str, line: int, head: str, rest: list[str]) -> list[str]:
    said = re.search(r"^.[+-]?([1-9])", head)
    indent = int(said[1]) if said else None
    blank = 0
    for number, each in enumerate(rest, start=line + 1):
        spaces = len(each) - len(each.lstrip(" "))
        if not each.strip():
            blank = max(blank, spaces) if indent is None else 0
            continue
        if not spaces or spaces < (blank if indent is None else indent):
            raise Malformed(number, f"{key}: it is indented less than the line that its block begins with")
        indent = spaces if indent is None else indent
    return rest


def _quoted(key: str, line: int, text: str) -> str:
    found = (_DOUBLE if text[0] == '"' else _SINGLE).match(text)
    if found is None:
        raise Malformed(line, f"{key}: its quote {text[0]} is never closed")
    behind = text[found.end() :]
    if behind and not re.fullmatch(r"[ ]+#[^\n]*", behind):
        raise Malformed(line, f"{key}: behind its closing quote stands {_shown(behind.strip())}")
    if text[0] == "'":
        return _joined([found[1].replace("''", "'")])
    return _joined([_ESCAPE.sub(lambda escape: _unescaped(key, line, escape), found[1])])


def _unescaped(key: str, line: int, escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    known = _ESCAPED.get(escape[4] or "") if digits is None else _character(int(digits, 16))
    if known is None:
        raise Malformed(line, f"{key}: {escape[0]} means nothing in a text in double quotes; for \\ write \\\\")
    return known


def _character(number: int) -> str | None:
    return None if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF else chr(number)


def _plain(key: str, pieces: list[tuple[int, str]]) -> str:
    texts: list[str] = []
    for place, (line, text) in enumerate(pieces):
        if re.search(r"(?:^|\s)#", text):
            raise Malformed(
                line, f"{key}: ' #' begins a comment, and what is behind it would be lost; put the text in quotes"
            )
        if ": " in text or text.endswith(":"):
            raise Malformed(line, f"{key}: it holds a ': ', which begins another value; put the text in quotes")
        if not place and (text.startswith(_NOT_TEXT) or text in ("-", "?")):
            raise Malformed(line, f"{key}: YAML reads what begins with {text[0]!r} as no text; put the text in quotes")
        texts.append(text)
    text = _joined(texts)
    return "" if text in _NULL else text


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."
