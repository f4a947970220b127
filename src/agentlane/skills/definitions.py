"""What an application sees of the skills and templates of an agent. Reading them is for those agents that have some."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from agentlane.data.border import clean_text
from agentlane.errors import InvalidMessage

Folders: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One path, or several."""

LOAD_SKILL = "load_skill"
"""The tool by which a model reads skills."""


class SkillDefinition(Struct, frozen=True, kw_only=True):
    """A skill as it was read when its agent was defined.

    ``body`` is the Markdown behind the frontmatter, ``file`` where it was read, ``digest`` the first 32 hexadecimal
    digits of SHA-256 over that file. ``files`` are the first hundred files beside it, as paths from its folder on.
    """

    name: str
    description: str
    body: str
    digest: str
    file: str
    files: tuple[str, ...] = ()

    def text(self) -> str:
        """What the model is shown of it."""
        shown = f'<skill name="{self.name}">\n{self.body}\n</skill>'
        if not self.files:
            return shown
        listed = "\n".join(f"- {clean_text(file)}" for file in self.files)
        return f"{shown}\n\nFiles of this skill, which `{LOAD_SKILL}` reads with `file`:\n{listed}"


class TemplateDefinition(Struct, frozen=True, kw_only=True):
    """A template as it was read when its agent was defined.

    ``arguments`` are those it takes, as they are written in it (``$1``, ``${depth:-full}``), in the order of their
    first places. ``file`` is where it was read, ``digest`` the first 32 hexadecimal digits of SHA-256 over that file.
    """

    name: str
    description: str
    body: str
    arguments: tuple[str, ...]
    digest: str
    file: str


def unknown(what: str, name: str, known: Iterable[str]) -> InvalidMessage:
    """The error for a name that an agent has nothing of."""
    there = ", ".join(sorted(known)) or "none"
    return InvalidMessage(
        f"{what}.name: there is no {what} {name!r}; there are: {there}", path=f"{what}.name", wanted=name
    )
