"""The type that an agent's final answer is decoded to: its JSON Schema, and the check of an answer against it."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from agentlane.data.border import clean_json
from agentlane.errors import InvalidDefinition, InvalidMessage
from agentlane.model import OutputSchema

Output = TypeVar("Output", default=str)

PROBLEM_LENGTH_MAX = 1_000
_FENCED = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)


class OutputError(Exception):
    """An answer is not what was asked for; the text says why, and is shown to the model."""


class OutputType(Generic[Output]):
    """A type that msgspec reads from JSON. ``InvalidDefinition`` for one that it cannot read or describe."""

    def __init__(self, type: type[Output]) -> None:
        self.type = type
        try:
            self._decoder = msgspec.json.Decoder(type)
            schema = _inlined(msgspec.json.schema(type))
        except Exception as error:  # a foreign type may raise anything while its fields are looked at
            raise InvalidDefinition(
                f"output={type!r}: it cannot be read from JSON; give a Struct, a dataclass or the like: {error}"
            ) from error
        name = re.sub(r"[^A-Za-z0-9_-]", "_", getattr(type, "__name__", "output"))[:64] or "output"
        self._schema = OutputSchema(name=name, schema=schema)

    def shown(self) -> OutputSchema:
        """What a request says of it: a copy, which an adapter may change."""
        return OutputSchema(name=self._schema.name, schema=deepcopy(self._schema.schema))

    def value_in(self, text: str) -> Any:
        """The JSON data that an answer is, once it fits the type; raises ``OutputError``.

        An answer that is one fenced block, and nothing else, is what stands in the block.
        """
        text = text.strip()
        fenced = _FENCED.fullmatch(text)
        if fenced is not None:
            text = fenced[1]
        try:
            given = msgspec.json.decode(text)
        except Exception as error:  # bad JSON, and text that is no text
            raise OutputError(f"it is not one JSON value: {error}"[:PROBLEM_LENGTH_MAX]) from error
        try:
            value = clean_json(given, "$")
            self.decode(value)
        except Exception as error:  # a type's own checks may raise anything
            said = f"{type(error).__name__}: {error}" if not isinstance(error, _ABOUT_DATA) else str(error)
            raise OutputError(said[:PROBLEM_LENGTH_MAX]) from error
        return value

    def decode(self, value: Any) -> Output:
        """JSON data as the type."""
        return self._decoder.decode(msgspec.json.encode(value))


_ABOUT_DATA = (msgspec.MsgspecError, InvalidMessage)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its outermost record at the top, as providers want it."""
    definitions = dict(schema.get("$defs", {}))
    if set(schema) - {"$defs"} == {"$ref"}:
        name = schema["$ref"].rsplit("/", 1)[-1]
        top = dict(definitions[name])
        if schema["$ref"] not in str([definitions[other] for other in definitions]):
            del definitions[name]  # no record holds one like itself
    else:
        top = {key: value for key, value in schema.items() if key != "$defs"}
    if definitions:
        top["$defs"] = definitions
    return top
