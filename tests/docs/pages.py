"""The documentation as data: its pages, their Python blocks with markers, their links and headings.

A marker is a comment on the line before a block's fence:

- none: the block runs, alone, in an empty folder of its page
- ``<!-- continues -->``: it runs with the names of the block before it
- ``<!-- fragment -->``: it is only compiled, for it needs what a page cannot have (a provider, say)
- ``<!-- local server -->``: it runs alone, its addresses on this machine led to a server that the test has
- ``<!-- file: NAME -->``: it is written to that file in the page's folder, and run by a test of its own
- ``<!-- output -->`` before a ``text`` block: what the Python blocks since the last one print
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import agentlane

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\s*$")
_MARKER = re.compile(r"^<!--\s*(fragment|continues|output|local server|file:\s*(?P<name>[\w.]+))\s*-->$")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*)$")


class Block(NamedTuple):
    """One fenced block; ``line`` is the number of its first line, ``file`` the name that a file marker gives."""

    language: str
    marker: str
    file: str
    text: str
    line: int


def pages() -> list[Path]:
    """README and every page below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


REAL_MODELS = re.compile(r"AGENTLANE_MODEL|(OPENAI|ANTHROPIC)_\w+")


def environment() -> dict[str, str]:
    """For a child process in any folder: it imports the agentlane that this process has, and knows of no provider."""
    kept = {name: value for name, value in os.environ.items() if not REAL_MODELS.fullmatch(name)}
    return {**kept, "PYTHONPATH": str(Path(agentlane.__file__).resolve().parents[1])}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text().splitlines()
    index = 0
    while index < len(lines):
        fence = _FENCE.match(lines[index])
        if fence is None:
            index += 1
            continue
        end = lines.index("```", index + 1)
        found = _MARKER.match(lines[index - 1]) if index else None
        marker = "" if found is None else found[1].split(":")[0]
        file = "" if found is None else found["name"] or ""
        text = "\n".join(lines[index + 1 : end]) + "\n"
        yield Block(fence[1], marker, file, text, index + 2)
        index = end + 1


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """The targets of a page's links that stay inside the repository."""
    return [target for target in _LINK.findall(prose(page)) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have."""
    found = set()
    for line in prose(page).splitlines():
        if heading := _HEADING.match(line):
            found.add(re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-"))
    return found
