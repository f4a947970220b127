"""Docstrings: what a function is for, and what is said about each of its parameters, in three styles."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_GOOGLE = re.compile(r"^(Args|Arguments|Parameters|Attributes|Keyword Args|Keyword Arguments):\s*$")
_GOOGLE_END = re.compile(
    r"^(Returns?|Raises|Yields?|Examples?|Notes?|Warnings?|Warns|See Also|References|Todo|Methods):\s*$"
)
_GOOGLE_ITEM = re.compile(r"^\*{0,2}(\w+)\s*(?:\(.*?\))?:(?:\s+(.*)|)$")
_RULE = re.compile(r"^-{3,}\s*$")
_NUMPY = frozenset({"Parameters", "Other Parameters", "Attributes"})
_NUMPY_OTHERS = frozenset(
    {
        *("Examples", "Methods", "Notes", "Raises", "Receives", "References", "Returns", "See Also", "Warnings"),
        *("Warns", "Yields"),
    }
)
_NUMPY_ITEM = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_REST_ITEM = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword|ivar|cvar|var)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
)
_REST_FIELD = re.compile(
    r"^:(?:returns?|rtype|raises?|except|exception|type|vartype|yields?|ytype|meta)(?:\s[^:]*)?:(?:\s|$)"
)


class Docstring(NamedTuple):
    """``description`` is what stands before the sections; ``texts`` says what each parameter is."""

    description: str
    texts: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring in the style of Google, NumPy or reStructuredText; sections of other kinds are left out."""
    reader = _Reader(inspect.cleandoc(text or "").splitlines())
    while reader.lines:
        reader.step()
    return Docstring("\n".join(reader.description).strip(), {name: text for name, text in reader.texts.items() if text})


class _Reader:
    """Goes through the lines once; ``_section`` says how the next one is read."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines[::-1]
        self.description: list[str] = []
        self.texts: dict[str, str] = {}
        self._section = "description"
        self._names: tuple[str, ...] = ()
        self._indent: int | None = None

    def step(self) -> None:
        line = self.lines.pop()
        if self._begins_section(line):
            return
        match self._section:
            case "description":
                self.description.append(line)
            case "google":
                self._google(line)
            case "numpy":
                self._numpy(line)
            case "rest":
                self._continued(line)
            case _:
                pass  # a section that says nothing about parameters

    def _begins_section(self, line: str) -> bool:
        if _GOOGLE.match(line):
            self._begin("google")
        elif _GOOGLE_END.match(line):
            self._begin("other")
        elif line.rstrip() in _NUMPY | _NUMPY_OTHERS and self.lines and _RULE.match(self.lines[-1]):
            self.lines.pop()
            self._begin("numpy" if line.rstrip() in _NUMPY else "other")
        elif found := _REST_ITEM.match(line):
            self._begin("rest", (found[1],))
            self.texts[found[1]] = found[2].strip()
        elif _REST_FIELD.match(line):
            self._begin("other")
        else:
            return False
        return True

    def _begin(self, section: str, names: tuple[str, ...] = ()) -> None:
        self._section, self._names, self._indent = section, names, None

    def _google(self, line: str) -> None:
        if not line.strip():
            return
        depth = len(line) - len(line.lstrip())
        if self._indent is None:
            self._indent = depth
        found = _GOOGLE_ITEM.match(line.strip()) if depth <= self._indent else None
        if depth == 0 and found is None:  # the section has ended without another one
            self._begin("other")
        elif found:
            self._names = (found[1],)
            self.texts[found[1]] = (found[2] or "").strip()
        else:
            self._continued(line)

    def _numpy(self, line: str) -> None:
        if line.strip() and not line[0].isspace():
            found = _NUMPY_ITEM.match(line.strip())
            self._names = tuple(name.strip().lstrip("*") for name in found[1].split(",")) if found else ()
            self.texts.update(dict.fromkeys(self._names, ""))
        else:
            self._continued(line)

    def _continued(self, line: str) -> None:
        for name in self._names:
            self.texts[name] = f"{self.texts[name]} {line.strip()}".strip()
