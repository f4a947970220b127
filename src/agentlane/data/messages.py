"""Messages of a conversation and the frames of an answer that is still streaming, as frozen records."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agentlane.data.usage import Usage

StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "error", "aborted"]
"""Why an answer ended; ``error`` and ``aborted`` answers are kept but never sent back."""


class TextPart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="text"):
    """Plain text, in a message of any role. ``signature`` is the provider's opaque mark on it, sent back verbatim."""

    text: str
    signature: str | None = None


class ImagePart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="image"):
    """An image: base64 ``data`` and its ``mime_type``."""

    data: str
    mime_type: str

    @classmethod
    def of(cls, data: bytes, mime_type: str | None = None) -> ImagePart | None:
        """The bytes of an image as a part; None if no type is given and they are no PNG, JPEG, GIF or WebP."""
        if mime_type is None:
            mime_type = image_type(data)
        return None if mime_type is None else cls(data=b2a_base64(data, newline=False).decode(), mime_type=mime_type)


_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""What every provider takes, and what the first bytes of an image are known to say."""


def image_type(data: bytes) -> str | None:
    """What the first bytes of an image say that it is; None for what is no PNG, JPEG, GIF or WebP."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((name for start, name in _IMAGES.items() if data.startswith(start)), None)


class ThinkingPart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="thinking"):
    """The model's reasoning, with the provider's opaque ``signature`` (kept verbatim)."""

    text: str
    signature: str | None = None
    redacted: bool = False


class ToolCallPart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="tool_call"):
    """A call that the model asks for. ``id`` is the provider's own, kept but never used as a key.

    ``arguments`` is the object asked for; when it did not parse or broke the border rule it is None and
    ``arguments_text`` holds the text as received.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None = None
    arguments_text: str | None = None
    signature: str | None = None


class ProviderPart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type", tag="provider"):
    """An opaque part of one provider (a call that it executed itself, say); sent back to that provider verbatim.

    Data that cannot be stored, as with a number beyond 64 bits, is kept as its text: then it is not sent back.
    """

    provider: str
    data: Any


UserPart: TypeAlias = TextPart | ImagePart
AssistantPart: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ProviderPart


class ModelIdentity(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which model answered: the provider's name and the model's name there."""

    provider: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


class ErrorInfo(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A stored error: stable ``code``, human ``message``, and whether trying again may help."""

    code: str
    message: str
    retryable: bool = False
    retry_after_ms: int | None = None


class ExpandedFrom(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a user message was made of: a skill or a template, by its name, and what was given with it.

    ``digest`` is the first 32 hexadecimal digits of SHA-256 over the file as it was then. ``arguments`` of a skill is
    the text that stands behind it, if there is one.
    """

    kind: Literal["skill", "template"]
    name: str
    digest: str
    arguments: tuple[str, ...] = ()
    named: dict[str, str] = {}


class UserMessage(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="user"):
    """What the application or its user says to the model.

    ``sent_at`` of any message is when it was said, in milliseconds, if it was said before its entry was written.
    ``expanded_from`` says which skill or template it was made of; its content is what that said then.
    """

    content: tuple[UserPart, ...]
    sent_at: int | None = None
    expanded_from: ExpandedFrom | None = None


class AssistantMessage(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="assistant"
):
    """One settled answer of a model, failed and aborted ones included.

    ``answers`` names the input entries that this is the first answer to; the library fills it in.
    ``usage`` is null where the charge is unknown.
    """

    content: tuple[AssistantPart, ...]
    stop_reason: StopReason
    model: ModelIdentity | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None
    answers: tuple[str, ...] = ()
    sent_at: int | None = None

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls in the order the model asked for them."""
        return tuple(part for part in self.content if type(part) is ToolCallPart)

    @property
    def text(self) -> str:
        """All text parts joined."""
        return "".join(part.text for part in self.content if type(part) is TextPart)


class ToolResultMessage(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="tool_result"
):
    """The one result of one call; its entry's id is the call's id. ``call_id`` is the provider's id of the call."""

    call_id: str
    name: str
    content: tuple[UserPart, ...]
    details: Any = None
    is_error: bool = False
    sent_at: int | None = None

    @property
    def text(self) -> str:
        """All text parts, each on lines of its own."""
        return "\n".join(part.text for part in self.content if type(part) is TextPart)


Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage
"""A message of a conversation, of any role."""


class PartStart(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="frame", tag="start"):
    """A part of a streaming answer begins. ``id`` and ``name`` are those of a call."""

    index: int
    kind: Literal["text", "thinking", "tool_call"]
    id: str = ""
    name: str = ""


class PartDelta(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="frame", tag="delta"):
    """More text of the part at ``index``; for a call, more of its raw argument text."""

    index: int
    text: str


class PartEnd(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="frame", tag="end"):
    """The part at ``index`` is whole: ``part`` replaces what its deltas showed."""

    index: int
    part: AssistantPart


class UsageSeen(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="frame", tag="usage"):
    """Usage that the provider reported before the end; kept if the stream is cut."""

    usage: Usage


Frame: TypeAlias = PartStart | PartDelta | PartEnd | UsageSeen


def user(text: str, images: Iterable[ImagePart] = ()) -> UserMessage:
    """A user message of one text (left out if empty) and images."""
    parts: tuple[UserPart, ...] = (TextPart(text=text),) if text else ()
    return UserMessage(content=parts + tuple(images))
