"""Skills of an agent: folders with a SKILL.md, what the model is told of them, and what a request for one says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from agentlane.data.digests import digest
from agentlane.data.messages import ExpandedFrom, TextPart, UserMessage
from agentlane.data.requests import Skill
from agentlane.errors import InvalidDefinition
from agentlane.skills.definitions import LOAD_SKILL, Folders, SkillDefinition, unknown
from agentlane.skills.files import Folder, Unreadable
from agentlane.skills.frontmatter import Malformed, decoded, read_frontmatter

SKILL_FILE = "SKILL.md"

FILE_BYTES_MAX = 262_144
"""How large a SKILL.md, a template, or a file beside a SKILL.md may be."""
FILES_LISTED_MAX = 100
"""How many files beside a SKILL.md the model is told of; it may read others."""
DEFINITIONS_MAX = 1_000
"""How many skills, and how many templates, an agent may have."""
NAME_LENGTH_MAX = 64
DESCRIPTION_LENGTH_MAX = 1_024

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class Skills:
    """The skills of one agent, in the order of their names."""

    def __init__(self, agent: str, folders: Folders) -> None:
        self.all: dict[str, SkillDefinition] = {}
        self.folders: dict[str, Folder] = {}
        for folder in found_folders(agent, "skills", folders):
            with reading(agent, folder.path):
                single = folder.has(SKILL_FILE)
                places = [folder] if single else _skill_folders(folder)
            for place in places:
                self._add(agent, place)
        self.all = dict(sorted(self.all.items()))
        self.listed = _listed(self.all)

    def _add(self, agent: str, place: Folder) -> None:
        skill = _read_skill(agent, place)
        known = self.all.get(skill.name)
        if known is not None:
            raise InvalidDefinition(
                f"agent {agent!r}: {skill.file}: a skill named {skill.name!r} is in {known.file} already"
            )
        if len(self.all) == DEFINITIONS_MAX:
            raise InvalidDefinition(f"agent {agent!r}: more than {DEFINITIONS_MAX} skills, with {skill.file}")
        self.all[skill.name], self.folders[skill.name] = skill, place

    def expand(self, request: Skill) -> UserMessage:
        """The message that a request for a skill stands for; ``InvalidMessage`` lists the skills that there are."""
        skill = self.all.get(request.name)
        if skill is None:
            raise unknown("skill", request.name, self.all)
        parts = [TextPart(text=skill.text())]
        if request.text:
            parts.append(TextPart(text=request.text))
        arguments = (request.text,) if request.text else ()
        origin = ExpandedFrom(kind="skill", name=skill.name, digest=skill.digest, arguments=arguments)
        return UserMessage(content=tuple(parts), expanded_from=origin)


class reading:
    """What cannot be read within it is an ``InvalidDefinition`` that names the file, and the line if there is one."""

    def __init__(self, agent: str, file: str) -> None:
        self._agent = agent
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Malformed):
            raise InvalidDefinition(f"agent {self._agent!r}: {self._file}:{error.line}: {error.why}") from error
        if isinstance(error, Unreadable | OSError):
            raise InvalidDefinition(f"agent {self._agent!r}: {self._file}: {error}") from error


def found_folders(agent: str, what: str, folders: Folders) -> list[Folder]:
    """The folders, or files, that an option names."""
    given = [folders] if isinstance(folders, str | os.PathLike) else folders
    try:
        paths: list[object] = [os.fspath(each) for each in given]
    except TypeError as error:
        raise InvalidDefinition(
            f"agent {agent!r}: {what}={folders!r} must be a path of a folder, or several"
        ) from error
    checked: list[Folder] = []
    for path in paths:
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidDefinition(f"agent {agent!r}: {what}: {path!r} is no path of a folder")
        if not os.path.exists(path):
            raise InvalidDefinition(f"agent {agent!r}: {what}: {path} is not there (looked for in {os.getcwd()})")
        checked.append(Folder(path))
    return checked


def _skill_folders(folder: Folder) -> list[Folder]:
    places: list[Folder] = []
    for name, is_folder in folder.names():
        if name.startswith((".", "_")):
            continue
        if folder.is_link(name):
            raise Unreadable(f"{name} is a symbolic link; links are not followed: name the folder it leads to instead")
        if is_folder:
            places.append(folder / name)
    if not places:
        raise Unreadable(f"there is no {SKILL_FILE} in it and no folder with one")
    return places


def _read_skill(agent: str, place: Folder) -> SkillDefinition:
    file = os.path.join(place.path, SKILL_FILE)
    with reading(agent, file):
        content = place.read(SKILL_FILE, FILE_BYTES_MAX)
        found = read_frontmatter(decoded(content), ("name", "description"), required=True)
        for key in ("name", "description"):
            if not found.texts.get(key):
                raise Malformed(found.lines.get(key, 1), f"`{key}` is missing, or has no text")
        name, description = found.texts["name"], found.texts["description"]
        if _NAME.fullmatch(name) is None or len(name) > NAME_LENGTH_MAX:
            raise Malformed(
                found.lines["name"],
                f"name: {name[:100]!r} must be 1 to {NAME_LENGTH_MAX} of a-z 0-9 and single hyphens between them",
            )
        if name != place.name:
            raise Malformed(found.lines["name"], f"name: {name!r} must be that of its folder, {place.name!r}")
        if len(description) > DESCRIPTION_LENGTH_MAX:
            raise Malformed(
                found.lines["description"],
                f"description: it has {len(description)} characters; at most {DESCRIPTION_LENGTH_MAX} are taken",
            )
        files = tuple(each for each in place.files(FILES_LISTED_MAX + 1) if each != SKILL_FILE)
    return SkillDefinition(
        name=name,
        description=description,
        body=found.body,
        digest=digest(content),
        file=file,
        files=files[:FILES_LISTED_MAX],
    )


def _listed(skills: Mapping[str, SkillDefinition]) -> str:
    """What stands behind the instructions: the same text as long as the skills are the same, so that caches hold."""
    if not skills:
        return ""
    lines = [f"- {skill.name}: {skill.description}" for skill in skills.values()]
    return (
        f"There are skills: instructions for certain kinds of work. Where one is for what you are asked to do, call "
        f"`{LOAD_SKILL}` with its name first, and then do as it says.\n\n" + "\n".join(lines)
    )
