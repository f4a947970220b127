"""What an application may ask of a lane, its digest, and the durable short form of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from agentlane.data.border import clean_object, clean_text
from agentlane.data.digests import digest
from agentlane.data.messages import ExpandedFrom, ImagePart, TextPart, UserMessage, UserPart, user
from agentlane.errors import InvalidMessage

_NAME = "[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
_MIME_TYPE = re.compile(f"{_NAME}/{_NAME}")
"""RFC 6838, section 4.2: what the names of a type and a subtype may be."""


TIME_MAX = 2**53
"""Milliseconds; what every reader of JSON can hold exactly."""


class Prompt(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag="prompt"):
    """Ask the agent: text and images as one message, or user messages as they are (not both)."""

    text: str = ""
    images: tuple[ImagePart, ...] = ()
    messages: tuple[UserMessage, ...] = ()


class Skill(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="skill"):
    """Ask the agent with one of its skills: what the skill says, and ``text`` behind it, become one user message."""

    name: str
    text: str = ""


class Template(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="template"):
    """Ask the agent with one of its templates, and its arguments by position and by name."""

    name: str
    arguments: Sequence[str] = ()
    named: Mapping[str, str] = {}


class Compact(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag="compact"):
    """Summarize what the model is shown, but for a tail. ``instructions`` say what the summary should look at, behind
    those of the agent's policy; ``keep_tokens`` is how much of the tail is kept, if not as much as the policy says."""

    instructions: str = ""
    keep_tokens: int | None = None


class Navigate(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind", tag="navigate"):
    """Move the lane's tip to an entry (None: before the first); with ``summarize`` a summary of the path that is left
    behind is put there. ``label`` names the entry that was the tip; ``instructions`` as with ``Compact``."""

    to: str | None
    label: str | None = None
    summarize: bool = False
    instructions: str = ""


Request: TypeAlias = Prompt | Skill | Template | Compact | Navigate
"""What ``accept`` takes."""


class RequestInfo(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The durable short form of a request: its kind, and the digest by which a repeated one is known."""

    kind: str
    digest: str


def prompt_messages(request: object) -> tuple[UserMessage, ...]:
    """The checked user messages of ``request``; raises ``InvalidMessage`` with the path of what is wrong."""
    if not isinstance(request, Prompt):
        write = "give agent.expand(...) of it" if isinstance(request, Skill | Template) else "write Prompt('...')"
        raise InvalidMessage(f"request: a Prompt is needed here, not {type(request).__name__}; {write}")
    given = _items(request.messages, "prompt.messages")
    images = [
        _checked_image(image, f"prompt.images[{index}]")
        for index, image in enumerate(_items(request.images, "prompt.images"))
    ]
    if not isinstance(request.text, str):
        raise InvalidMessage(f"prompt.text: text is needed here, not {type(request.text).__name__}")
    if given and (request.text or images):
        raise InvalidMessage("prompt: give text and images, or messages, not both")
    if not given:
        if not request.text and not images:
            raise InvalidMessage("prompt: it is empty; give a text, an image or messages")
        return (user(clean_text(request.text, "prompt.text"), images),)
    return tuple(checked_user(message, f"prompt.messages[{index}]") for index, message in enumerate(given))


def checked_user(message: object, path: str) -> UserMessage:
    """A clean copy of a user message; dicts, tuples and wrongly typed records are refused with their path."""
    if not isinstance(message, UserMessage):
        raise InvalidMessage(f"{path}: a UserMessage is needed here, not {type(message).__name__}", path=path)
    content = _items(message.content, f"{path}.content")
    if not content:
        raise InvalidMessage(f"{path}.content: it is empty; give a text or an image", path=path)
    return UserMessage(
        content=tuple(checked_part(part, f"{path}.content[{i}]") for i, part in enumerate(content)),
        sent_at=checked_time(message.sent_at, f"{path}.sent_at"),
        expanded_from=_checked_origin(message.expanded_from, f"{path}.expanded_from"),
    )


def _checked_origin(origin: object, path: str) -> ExpandedFrom | None:
    if origin is None:
        return None
    if not isinstance(origin, ExpandedFrom):
        raise InvalidMessage(f"{path}: it must be as agent.expand made it, or None", path=path)
    return ExpandedFrom(
        kind=origin.kind,
        name=clean_text(origin.name, f"{path}.name"),
        digest=clean_text(origin.digest, f"{path}.digest"),
        arguments=_texts(origin.arguments, f"{path}.arguments"),
        named=_named_texts(origin.named, f"{path}.named"),
    )


def checked_named(request: Skill | Template) -> Skill | Template:
    """A clean copy of a request for a skill or a template; raises ``InvalidMessage`` with the path of what is wrong."""
    if isinstance(request, Skill):
        return Skill(clean_text(request.name, "skill.name"), clean_text(request.text, "skill.text"))
    return Template(
        clean_text(request.name, "template.name"),
        _texts(request.arguments, "template.arguments"),
        _named_texts(request.named, "template.named"),
    )


def _texts(given: object, path: str) -> tuple[str, ...]:
    return tuple(clean_text(each, f"{path}[{i}]") for i, each in enumerate(_items(given, path)))  # type: ignore[arg-type]


def _named_texts(given: object, path: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, text in clean_object(given, path).items():
        named[name] = clean_text(text, f"{path}.{name}")
    return named


def checked_time(value: object, path: str) -> int | None:
    """``value`` if it is a time in milliseconds, or None; ``InvalidMessage`` names the path of anything else."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= TIME_MAX:
        raise InvalidMessage(f"{path}: whole milliseconds since 1970, or None, are needed here", path=path)
    return value


def checked_part(part: object, path: str) -> UserPart:
    """A clean copy of a text or image part."""
    if isinstance(part, TextPart):
        signature = None if part.signature is None else clean_text(part.signature, f"{path}.signature")
        return TextPart(text=clean_text(part.text, f"{path}.text"), signature=signature)
    if isinstance(part, ImagePart):
        return _checked_image(part, path)
    raise InvalidMessage(f"{path}: a TextPart or ImagePart is needed here, not {type(part).__name__}", path=path)


def _checked_image(image: object, path: str) -> ImagePart:
    if not isinstance(image, ImagePart):
        raise InvalidMessage(f"{path}: an ImagePart is needed here, not {type(image).__name__}", path=path)
    mime_type = clean_text(image.mime_type, f"{path}.mime_type")
    if _MIME_TYPE.fullmatch(mime_type) is None:
        raise InvalidMessage(
            f"{path}.mime_type: {_short(mime_type)} is not a media type; give one like 'image/png', without more",
            path=f"{path}.mime_type",
        )
    return ImagePart(data=clean_text(image.data, f"{path}.data"), mime_type=mime_type)


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}... ({len(text)} characters)"


def request_digest(lane: str, messages: tuple[UserMessage, ...]) -> str:
    """SHA-256 over the lane's name and the messages in their stored form, cut to 128 bits."""
    return digest(lane.encode(), b"|", msgspec.json.encode(messages))


def named_digest(lane: str, request: Skill | Template) -> str:
    """The same of a request for a skill or a template as it was given, so that it does not change with their files."""
    return digest(lane.encode(), b"|", msgspec.json.encode(request, order="sorted"))


def _items(value: object, path: str) -> tuple[object, ...]:
    if isinstance(value, tuple | list):
        return tuple(value)
    raise InvalidMessage(f"{path}: a tuple is needed here, not {type(value).__name__}", path=path)
