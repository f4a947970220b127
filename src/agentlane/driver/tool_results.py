"""What a tool returned or raised, as the one result of its call: clean, bounded, encoded."""

from __future__ import annotations

from binascii import a2b_base64
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from agentlane.data import codec
from agentlane.data.border import clean_json, clean_text
from agentlane.data.messages import (
    IMAGE_TYPES,
    ImagePart,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserPart,
    image_type,
)
from agentlane.data.requests import checked_part
from agentlane.driver.tool_questions import Question
from agentlane.errors import InvalidMessage
from agentlane.machine.outcomes import error_result
from agentlane.tool import PendingResult, ToolResult

PART_BYTES = 96
"""What a part costs beside what it holds: at least its frame as JSON, or a mark that it was left out."""

RESULT_BYTES_MAX = 64 << 20
"""How large a result may be as it is stored, whatever is said to be allowed: what every store takes."""


class Sealed(NamedTuple):
    """A result as it will be read back, its encoded form, and the tool's wish to end the run."""

    message: ToolResultMessage
    payload: bytes
    terminate: bool = False
    deferred: bool = False
    """There is no result yet: one will be delivered."""
    question: Question | None = None
    """There is no result yet: the tool has asked this, and starts again when it is answered."""


def seal_value(call: ToolCallPart, value: Any, limit_bytes: int) -> Sealed:
    """The result for what a tool returned; a value that breaks the border rule becomes an error result."""
    try:
        if type(value) is str and value and len(value) * 4 <= limit_bytes:  # the common case, without detours
            text = TextPart(text=clean_text(value, "result"))
            return _seal(ToolResultMessage(call_id=call.id, name=call.name, content=(text,)))
        if isinstance(value, PendingResult):
            return _seal(ToolResultMessage(call_id=call.id, name=call.name, content=()))._replace(deferred=True)
        result = value if isinstance(value, ToolResult) else ToolResult(content=_content(value))
        return seal_result(call, result, limit_bytes)
    except InvalidMessage as error:
        why = str(error)
    except Exception as error:  # a foreign object may raise anything while it is read
        why = error_text(error)
    return seal_error(call, f"The tool {call.name!r} returned something that cannot be kept: {why}", limit_bytes)


def seal_question(call: ToolCallPart, question: Question) -> Sealed:
    """The end of a call that asks a person."""
    return _seal(ToolResultMessage(call_id=call.id, name=call.name, content=()))._replace(question=question)


def seal_given(call: ToolCallPart, value: Any, limit_bytes: int) -> Sealed:
    """The result that somebody delivers; ``InvalidMessage`` for a value that breaks the border rule."""
    if isinstance(value, PendingResult):
        raise InvalidMessage("result: a result is needed here, not the promise of one", path="result")
    try:
        result = value if isinstance(value, ToolResult) else ToolResult(content=_content(value))
        return seal_result(call, result, limit_bytes)
    except InvalidMessage:
        raise
    except Exception as error:  # a foreign object may raise anything while it is read
        raise InvalidMessage(f"result: it cannot be read: {error_text(error)}", path="result") from error


def seal_result(call: ToolCallPart, result: ToolResult, limit_bytes: int) -> Sealed:
    """A whole result; ``InvalidMessage``, or whatever a foreign object raises, for one that cannot be kept."""
    content = _bounded(_parts(result.content), limit_bytes)
    details = None if result.details is None else clean_json(result.details, "result.details")
    content, details = _bounded_details(content, details, limit_bytes)
    message = ToolResultMessage(
        call_id=call.id, name=call.name, content=content, details=details, is_error=_flag(result.is_error)
    )
    return _seal(message, terminate=_flag(result.terminate))


def seal_error(call: ToolCallPart, text: str, limit_bytes: int) -> Sealed:
    """An error result of one text."""
    return _seal(error_result(call, bounded_text(text, limit_bytes)))


def bounded_text(text: str, limit_bytes: int) -> str:
    """Clean text of at most so many bytes: cut at a code point, with a mark."""
    return _cut(clean_text(text), limit_bytes)


def seal_message(message: ToolResultMessage) -> Sealed:
    """A result that the library made."""
    return _seal(message)


def error_text(error: BaseException) -> str:
    """What an exception says, for the model; never its traceback."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(value: object) -> str:
    """``str(value)``, or nothing where that raises: foreign objects may fail in any way to print themselves."""
    try:
        return str(value)
    except BaseException:
        return ""


def progress_parts(content: Any, limit_bytes: int) -> tuple[UserPart, ...]:
    """Checked and bounded parts of a progress report."""
    return _bounded(_parts(content), limit_bytes)


def _seal(message: ToolResultMessage, *, terminate: bool = False) -> Sealed:
    payload, copy = codec.BODY.seal(message, "result")
    if not isinstance(copy, ToolResultMessage):
        raise InvalidMessage("result: it does not read back as a tool result")
    if len(payload) > RESULT_BYTES_MAX:
        raise InvalidMessage(
            f"result: {len(payload)} bytes as it is stored, and {RESULT_BYTES_MAX} can be kept; store large content "
            "elsewhere and return a reference to it"
        )
    return Sealed(copy, payload, terminate)


def _content(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str | TextPart | ImagePart):
        return value
    if isinstance(value, list | tuple) and any(isinstance(item, TextPart | ImagePart) for item in value):
        return [TextPart(text=item) if isinstance(item, str) else item for item in value]
    return codec.encode(clean_json(value, "result", records=_record)).decode()


def _record(value: Any) -> Any:
    """A record, wherever in a result, as JSON data; anything else as it is. A part among data is none."""
    if isinstance(value, TextPart | ImagePart):
        return value
    if isinstance(value, Struct) or (hasattr(value, "__dataclass_fields__") and not isinstance(value, type)):
        return msgspec.to_builtins(value, enc_hook=_model)
    return _model(value) if hasattr(type(value), "__pydantic_fields__") else value


def _model(value: Any) -> Any:
    if not hasattr(type(value), "__pydantic_fields__"):
        raise NotImplementedError(f"a {type(value).__name__} is not JSON data; convert it first")
    return value.model_dump(mode="json")


def _parts(content: Any) -> tuple[UserPart, ...]:
    if isinstance(content, str):
        return (TextPart(text=clean_text(content, "result.content")),) if content else ()
    if isinstance(content, TextPart | ImagePart):
        content = (content,)
    if not isinstance(content, list | tuple):
        raise InvalidMessage(f"result.content: text or parts are needed here, not {type(content).__name__}")
    checked = (checked_part(part, f"result.content[{index}]") for index, part in enumerate(content))
    return tuple(_seen(part) if isinstance(part, ImagePart) else part for part in checked)


def _seen(image: ImagePart) -> UserPart:
    """An image as what its bytes are; a text in place of one that every later request with it would fail for."""
    said, claimed = "".join(image.data.split()), image.mime_type.lower()
    try:
        kind = image_type(data := a2b_base64(said, strict_mode=True))
    except ValueError:
        return TextPart(text=f"[{image.mime_type} left out: its data is no base64]")
    if not data or (kind is None and (claimed in IMAGE_TYPES or claimed == "image/jpg")):
        return TextPart(text=f"[{image.mime_type} left out: its {len(data)} bytes are no such image]")
    return ImagePart(data=said, mime_type=kind or image.mime_type)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidMessage(f"result: is_error and terminate are True or False, not {type(value).__name__}")
    return value


def _bounded(parts: tuple[UserPart, ...], limit_bytes: int) -> tuple[UserPart, ...]:
    """Parts of at most ``limit_bytes`` together: text is cut at a code point with a mark, images that do not fit go.

    All that a part holds counts, and each part behind the first costs ``PART_BYTES`` more, so that no number of empty
    ones is free. Behind a cut nothing more fits: one mark says how many parts were left out there.
    """
    kept: list[UserPart] = []
    left = limit_bytes
    for index, part in enumerate(parts):
        left -= PART_BYTES if index else 0
        if left < 0:
            kept.append(_left_out(len(parts) - index))
            break
        size = _size(part)
        if size <= left:
            kept.append(part)
            left -= size
        elif isinstance(part, ImagePart):
            kept.append(TextPart(text=f"[image left out: {size} bytes do not fit in {limit_bytes}]"))
        elif (text_size := len(part.text.encode())) <= left:
            kept.append(TextPart(text=part.text))
            kept.append(TextPart(text=f"[signature left out: {size - text_size} bytes do not fit in {limit_bytes}]"))
            left -= text_size + PART_BYTES
        else:
            kept.append(TextPart(text=_cut(part.text, left)))
            if index + 1 < len(parts):
                kept.append(_left_out(len(parts) - index - 1))
            break
    return tuple(kept)


def _left_out(count: int) -> TextPart:
    return TextPart(text=f"[{count} more part{'s' if count > 1 else ''} left out]")


def _size(part: UserPart) -> int:
    texts = (part.data, part.mime_type) if isinstance(part, ImagePart) else (part.text, part.signature or "")
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _bounded_details(content: tuple[UserPart, ...], details: Any, limit_bytes: int) -> tuple[tuple[UserPart, ...], Any]:
    if details is None:
        return content, None
    size = len(codec.encode(details))
    if size <= limit_bytes:
        return content, details
    return (*content, TextPart(text=f"[details left out: {size} bytes do not fit in {limit_bytes}]")), None


def _cut(text: str, limit_bytes: int) -> str:
    """``text`` within the limit, or its beginning up to a whole code point and a mark that says what is missing."""
    data = text.encode()
    if len(data) <= limit_bytes:
        return text
    kept = data[:limit_bytes].decode(errors="ignore")
    return f"{kept}\n[cut: {len(data) - len(kept.encode())} of {len(data)} bytes left out]"
