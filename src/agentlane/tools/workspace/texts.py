"""Texts in files: decoded so that they encode to the same bytes again, shown with line numbers, and edited."""

from __future__ import annotations

from typing import NamedTuple

from agentlane.tools.workspace.paths import Refused

LINES_NAMED_MAX = 20

_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


class Text(NamedTuple):
    """What a file says. ``encode`` gives its bytes back, those that are no UTF-8 included."""

    text: str
    encoding: str
    mark: bytes

    def encode(self, text: str) -> bytes:
        """Another text as this file would hold it."""
        errors = "surrogateescape" if self.encoding == "utf-8" else "surrogatepass"
        return self.mark + text.encode(self.encoding, errors)


def text_of(data: bytes) -> Text | None:
    """A file's bytes as text: UTF-8, or UTF-16 that says so with its first bytes. None for a binary file."""
    mark, encoding = next(((mark, name) for mark, name in _BOMS if data.startswith(mark)), (b"", "utf-8"))
    body = data[len(mark) :]
    if encoding == "utf-8":
        return None if b"\0" in body else Text(body.decode("utf-8", "surrogateescape"), encoding, mark)
    if len(body) % 2 or body.startswith(b"\0\0"):  # the latter is how UTF-32 goes on
        return None
    try:
        return Text(body.decode(encoding, "surrogatepass"), encoding, mark)
    except UnicodeDecodeError:
        return None


def numbered(text: str, first: int, *, lines_max: int, chars_max: int, bytes_max: int) -> str:
    """Lines from ``first`` on, each behind its number, and at the end what was left out."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return "[the file is empty]"
    if first > len(lines):
        raise Refused(f"the file has {len(lines)} lines, and start_line is {first}")
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[first - 1 : first - 1 + lines_max], start=first):
        row = f"{number}\t{clipped(line.removesuffix(chr(13)), chars_max)}"
        size += len(row.encode("utf-8", "replace")) + 1
        if size > bytes_max and shown:
            break
        shown.append(row)
    last = first + len(shown) - 1
    if last < len(lines):
        shown.append(f"[lines {first} to {last} of {len(lines)}; go on with start_line={last + 1}]")
    return "\n".join(shown)


def clipped(line: str, chars_max: int) -> str:
    """A line, or its beginning and a mark that says how much is missing."""
    return line if len(line) <= chars_max else f"{line[:chars_max]} [{len(line) - chars_max} characters left out]"


class Edited(NamedTuple):
    """A text after an edit; how often it was made, and on which line first."""

    text: str
    times: int
    line: int


def edited(text: str, old: str, new: str, *, every: bool, size_max: int) -> Edited:
    """``old`` replaced by ``new``; ``Refused`` unless it is there exactly once, or at least once with ``every``.

    A text of more than ``size_max`` characters is refused before it is built. In a file whose lines end in CR LF a line
    end of ``old`` and ``new`` may be written as LF. Nothing else changes.
    """
    if not old:
        raise Refused("old_text is empty; to make a file or write all of it, use write_file")
    if "\r\n" in text:
        if old not in text:
            old = _with_crlf(old)
        if text.count("\n") == text.count("\r\n"):
            new = _with_crlf(new)
    if old == new:
        raise Refused("old_text and new_text are the same: nothing would change")
    first = text.find(old)
    if first < 0:
        raise Refused("old_text is not in the file; read it, and give the text exactly, blanks and all")
    times = text.count(old) if every else 1
    length = len(text) + times * (len(new) - len(old))
    if length > size_max:
        raise Refused(f"the file would have {length} characters, and {size_max} bytes can be written")
    if every:
        return Edited(text.replace(old, new), times, _line_of(text, first))
    if text.find(old, first + 1) >= 0:
        raise Refused(
            f"old_text is in the file more than once, {_lines_of(text, old)}; give more of the text around it, or set "
            "replace_all"
        )
    return Edited(text[:first] + new + text[first + len(old) :], 1, _line_of(text, first))


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _line_of(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _lines_of(text: str, old: str) -> str:
    lines: list[int] = []
    at = text.find(old)
    while at >= 0 and len(lines) <= LINES_NAMED_MAX:
        lines.append(_line_of(text, at))
        at = text.find(old, at + 1)
    more = " and more" if len(lines) > LINES_NAMED_MAX else ""
    return "on lines " + ", ".join(map(str, lines[:LINES_NAMED_MAX])) + more
