"""Templates of an agent: Markdown files with places for arguments, and the messages that requests for them stand for.

A place is ``$1``, ``$2`` and so on for an argument by position, ``$ARGUMENTS`` for all of those, separated by spaces,
``${name}`` for one by name, and ``${name:-text}``, ``${1:-text}`` or ``${ARGUMENTS:-text}`` for one with a default.
``$$`` is a dollar. Any other dollar is itself. What is put in is not looked at for places again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agentlane.data.digests import digest
from agentlane.data.messages import ExpandedFrom, TextPart, UserMessage
from agentlane.data.requests import Template
from agentlane.errors import InvalidDefinition, InvalidMessage, InvalidName, PayloadTooLarge
from agentlane.names import check_name
from agentlane.skills.definitions import Folders, TemplateDefinition, unknown
from agentlane.skills.files import Folder, Unreadable
from agentlane.skills.frontmatter import Malformed, decoded, read_frontmatter
from agentlane.skills.skills import DEFINITIONS_MAX, FILE_BYTES_MAX, found_folders, reading

ALL = "ARGUMENTS"
POSITION_MAX = 99
EXPANDED_LENGTH_MAX = 48 * 1024 * 1024
"""How many characters a template may become: what an argument is put into often is not built before it is counted."""

_PLACE = re.compile(r"\$(?:\$|([1-9][0-9]*)|(ARGUMENTS)(?![A-Za-z0-9_])|\{([^}\n]*)(\}?))")
_INNER = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*|[1-9][0-9]*)(?::-(.*))?")


class _Place(NamedTuple):
    key: str
    line: int


class _Parsed(NamedTuple):
    """Texts and places by turns, and the defaults of those arguments that have one."""

    pieces: tuple[str | _Place, ...]
    defaults: dict[str, str]

    @property
    def places(self) -> dict[str, _Place]:
        """The first place of each argument."""
        places: dict[str, _Place] = {}
        for piece in self.pieces:
            if isinstance(piece, _Place):
                places.setdefault(piece.key, piece)
        return places

    def written(self) -> tuple[str, ...]:
        """The arguments as they are written."""
        return tuple(self.shown(key) for key in self.places)

    def shown(self, key: str) -> str:
        """One of them."""
        if key in self.defaults:
            return f"${{{key}:-{self.defaults[key]}}}"
        return f"${key}" if key == ALL or key.isdigit() else f"${{{key}}}"


class Templates:
    """The templates of one agent, in the order of their names."""

    def __init__(self, agent: str, folders: Folders) -> None:
        self.all: dict[str, TemplateDefinition] = {}
        self._parsed: dict[str, _Parsed] = {}
        for folder in found_folders(agent, "templates", folders):
            for place, name in _files(agent, folder):
                self._add(agent, place, name)
        self.all = dict(sorted(self.all.items()))

    def _add(self, agent: str, place: Folder, file_name: str) -> None:
        name, file = file_name.removesuffix(".md"), os.path.join(place.path, file_name)
        try:
            check_name(name, "template")
        except InvalidName as error:
            raise InvalidDefinition(f"agent {agent!r}: {file}: {error}") from error
        if name in self.all:
            raise InvalidDefinition(
                f"agent {agent!r}: {file}: a template named {name!r} is in {self.all[name].file} already"
            )
        if len(self.all) == DEFINITIONS_MAX:
            raise InvalidDefinition(f"agent {agent!r}: more than {DEFINITIONS_MAX} templates, with {file}")
        with reading(agent, file):
            content = place.read(file_name, FILE_BYTES_MAX)
            found = read_frontmatter(decoded(content), ("description",), required=False)
            if not found.body:
                raise Malformed(found.body_line, "it says nothing: the prompt would be empty")
            parsed = _parse(found.body, found.body_line)
        self._parsed[name] = parsed
        self.all[name] = TemplateDefinition(
            name=name,
            description=found.texts.get("description", ""),
            body=found.body,
            arguments=parsed.written(),
            digest=digest(content),
            file=file,
        )

    def expand(self, request: Template) -> UserMessage:
        """The message that a request for a template stands for.

        Raises ``InvalidMessage`` that lists the templates that there are, or names the arguments that are missing or
        that it does not take, and ``PayloadTooLarge``.
        """
        template = self.all.get(request.name)
        if template is None:
            raise unknown("template", request.name, self.all)
        values = _values(template, self._parsed[template.name], request.arguments, request.named)
        pieces = [
            values[piece.key] if isinstance(piece, _Place) else piece for piece in self._parsed[template.name].pieces
        ]
        length = sum(map(len, pieces))
        if length > EXPANDED_LENGTH_MAX:
            raise PayloadTooLarge(
                f"template {template.name!r}: with these arguments it has {length} characters; at most "
                f"{EXPANDED_LENGTH_MAX} are taken"
            )
        text = "".join(pieces)
        if not text:
            raise InvalidMessage(f"template {template.name!r}: nothing is left of it with these arguments")
        origin = ExpandedFrom(
            kind="template",
            name=template.name,
            digest=template.digest,
            arguments=tuple(request.arguments),
            named=dict(request.named),
        )
        return UserMessage(content=(TextPart(text=text),), expanded_from=origin)


def _files(agent: str, folder: Folder) -> list[tuple[Folder, str]]:
    if os.path.isfile(folder.path):
        place, name = os.path.split(folder.path)
        if not name.endswith(".md"):
            raise InvalidDefinition(f"agent {agent!r}: templates: {folder.path} is no .md file and no folder of them")
        return [(Folder(place), name)]
    with reading(agent, folder.path):
        found = [(folder, name) for name, _ in folder.names() if name.endswith(".md") and not name.startswith(".")]
        if not found:
            raise Unreadable("there is no .md file in it")
    return found


def _parse(body: str, first_line: int) -> _Parsed:
    pieces: list[str | _Place] = []
    defaults: dict[str, tuple[str, int]] = {}
    lines: dict[str, int] = {}
    end, line = 0, first_line
    for found in _PLACE.finditer(body):
        line += body.count("\n", end, found.start())
        if text := body[end : found.start()]:
            pieces.append(text)
        end = found.end()
        if found[0] == "$$":
            pieces.append("$")
            continue
        key, default = _key(found, line)
        if default is not None:
            known = defaults.setdefault(key, (default, line))
            if known[0] != default:
                raise Malformed(line, f"{found[0]}: its default is {known[0]!r} in line {known[1]}; give it one")
        lines.setdefault(key, line)
        pieces.append(_Place(key, line))
    if end < len(body):
        pieces.append(body[end:])
    _check_positions(lines)
    return _Parsed(tuple(pieces), {key: default for key, (default, _) in defaults.items()})


def _key(found: re.Match[str], line: int) -> tuple[str, str | None]:
    """Which argument a place is for, and the default that it gives."""
    position, everything, inner, closed = found.groups()
    if inner is None:
        return _checked_position(position or everything, found[0], line), None
    parts = _INNER.fullmatch(inner)
    if not closed or parts is None:
        why = "is no name of an argument" if closed else "is not closed in its line"
        raise Malformed(line, f"{found[0]} {why}; for the text itself write ${found[0]}")
    if "${" in (parts[2] or ""):
        raise Malformed(line, f"{found[0]}: a default is a text, in which there are no other places")
    return _checked_position(parts[1], found[0], line), parts[2]


def _checked_position(key: str, written: str, line: int) -> str:
    if key.isdigit() and len(key) > len(str(POSITION_MAX)):
        raise Malformed(line, f"{written}: there are at most {POSITION_MAX} positions; for the text write ${written}")
    return key


def _check_positions(lines: Mapping[str, int]) -> None:
    """Each position up to the last is used: nobody could give the last one without those before it."""
    if ALL in lines:
        return
    last = max((int(key) for key in lines if key.isdigit()), default=0)
    for position in range(1, last):
        if str(position) not in lines:
            raise Malformed(
                lines[str(last)],
                f"${last} is used and ${position} is not; count them without gaps; for the text write $${last}",
            )


def _values(
    template: TemplateDefinition, parsed: _Parsed, arguments: Sequence[str], named: Mapping[str, str]
) -> dict[str, str]:
    places = parsed.places
    takes = ", ".join(template.arguments) or "no arguments"
    positions = max((int(key) for key in places if key.isdigit()), default=0)
    unused = [repr(value[:60]) for value in arguments[positions:]] if ALL not in places else []
    unused += [name for name in named if name not in places or name == ALL or name.isdigit()]
    if unused:
        raise InvalidMessage(
            f"template {template.name!r}: it has no place for {', '.join(unused)}; it takes {takes}",
            path="template.arguments",
        )
    values = {**parsed.defaults, **named}
    values |= {str(number): value for number, value in enumerate(arguments, start=1)}
    if arguments:
        values[ALL] = " ".join(arguments)
    missing = [f"{parsed.shown(key)} (line {place.line})" for key, place in places.items() if key not in values]
    if missing:
        raise InvalidMessage(
            f"template {template.name!r}: nothing is given for {', '.join(missing)}; it takes {takes}",
            path="template.arguments",
        )
    return values
