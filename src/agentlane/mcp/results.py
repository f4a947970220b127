"""What a server's tool answered, as a tool result: text and images for the model, the rest as details."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from agentlane import ImagePart, TextPart, ToolResult

_PROTOCOL = "io.modelcontextprotocol/"
"""Begins the keys of ``_meta`` that are the protocol's own."""

DETAILS_DEPTH_MAX = 48
DETAILS_VALUES_MAX = 500_000
"""Within both, and with numbers of 64 bits, details can be kept in a session."""

_IMAGE = re.compile(r"image/[A-Za-z0-9.+-]+")


def result_of(answer: CallToolResult) -> ToolResult:
    """The result for an answer.

    Texts and images are parts, in order. An embedded resource is its text or image behind a line that names it; audio,
    other bytes and links are lines that say what is there. ``details`` holds what the model is not shown as it is:
    ``structured`` content, ``blocks`` that have no part, and ``meta``.
    """
    parts: list[TextPart | ImagePart] = []
    blocks: list[dict[str, Any]] = []
    for block in answer.content:
        shown = _shown(block)
        parts.extend(shown)
        if not isinstance(block, TextContent | ImageContent):
            blocks.append(block.model_dump(mode="json", by_alias=True, exclude_none=True))
    details: dict[str, Any] = {}
    if answer.structured_content is not None:
        details["structured"] = answer.structured_content
        if not parts:
            parts.append(TextPart(text=json.dumps(answer.structured_content, ensure_ascii=False)))
    if blocks:
        details["blocks"] = blocks
    meta = {key: value for key, value in (answer.meta or {}).items() if not key.startswith(_PROTOCOL)}
    if meta:
        details["meta"] = meta
    kept = details_of(details)
    if details and kept is None:
        parts.append(TextPart(text=f"[details left out: more than {DETAILS_VALUES_MAX} values]"))
    return ToolResult(content=parts, details=kept, is_error=answer.is_error)


def details_of(found: dict[str, Any]) -> dict[str, Any] | None:
    """What a server said, as it can be kept: of a call that has run nothing is lost for one odd number in it.

    Numbers beyond 64 bits and those that are none (NaN, Infinity) become texts, and so does what is nested too deep, as
    JSON. None for nothing, and for more values than can be kept.
    """
    counted = 0

    def kept(value: Any, depth: int) -> Any:
        nonlocal counted
        counted += 1
        if counted > DETAILS_VALUES_MAX:
            raise OverflowError
        if isinstance(value, dict | list):
            if depth > DETAILS_DEPTH_MAX:
                return json.dumps(value, ensure_ascii=False)
            if isinstance(value, list):
                return [kept(each, depth + 1) for each in value]
            return {key: kept(each, depth + 1) for key, each in value.items()}
        if type(value) is int and not -(2**63) <= value < 2**64:
            return str(value)
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    try:
        return kept(found, 1) or None
    except OverflowError:
        return None


def _shown(block: object) -> list[TextPart | ImagePart]:
    match block:
        case TextContent():
            return [TextPart(text=block.text)]
        case ImageContent():
            return [_image(block.data, block.mime_type)]
        case AudioContent():
            return [TextPart(text=f"[audio {block.mime_type}, {_bytes_of(block.data)} bytes]")]
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return [TextPart(text=f"[resource {resource.uri}]\n{resource.text}")]
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            kind = resource.mime_type or "application/octet-stream"
            name = f"[resource {resource.uri}, {kind}, {_bytes_of(resource.blob)} bytes]"
            image = [_image(resource.blob, kind)] if _IMAGE.fullmatch(kind) else []
            return [TextPart(text=name), *image]
        case ResourceLink():
            size = "" if block.size is None else f", {block.size} bytes"
            about = f": {block.description}" if block.description else ""
            kind = f", {block.mime_type}" if block.mime_type else ""
            return [TextPart(text=f"[link to resource {block.uri} ({block.name}{kind}{size})]{about}")]
        case _:
            return [TextPart(text=f"[{type(block).__name__} left out]")]


def _image(data: str, mime_type: str) -> TextPart | ImagePart:
    if _IMAGE.fullmatch(mime_type) is None:
        return TextPart(text=f"[{mime_type or 'image'} left out, {_bytes_of(data)} bytes: no image type]")
    return ImagePart(data=data, mime_type=mime_type)


def _bytes_of(data: str) -> int:
    """How many bytes base64 text holds."""
    return len(data.rstrip("=")) * 3 // 4
