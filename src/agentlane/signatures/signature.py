"""A function's parameters as a model is shown them, and a model's arguments as the function takes them."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet
from copy import deepcopy
from typing import Any, Optional, get_args

import msgspec
from msgspec import NODEFAULT, Struct

from agentlane.errors import InvalidDefinition
from agentlane.signatures.constraints import SchemaError, with_constraints
from agentlane.signatures.docstrings import read_docstring
from agentlane.signatures.functions import name_of, refuse_class, target_of
from agentlane.signatures.models_of_pydantic import PydanticParameter, is_pydantics, unfolded
from agentlane.signatures.schema import PATHS, Schemas, default_as_json, described, record, with_more
from agentlane.signatures.unknown import unknown_field
from agentlane.tool_context import ToolContext

WHOLE_FLOAT_MAX = 2**53
"""Up to here a float says which whole number is meant."""


class Signature:
    """The arguments of a function as one record type, and the schema that says the same."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._tool = name = name_of(function)
        refuse_class(name, function)
        try:
            hints = typing.get_type_hints(target_of(function), include_extras=True)
            parameters = inspect.signature(function).parameters
        except NameError as error:
            raise _unresolved(name, target_of(function), error) from error
        except (TypeError, ValueError) as error:
            raise InvalidDefinition(f"tool {name!r}: its signature cannot be read: {error}") from error
        _refuse_unbound(name, function, parameters)
        doc = read_docstring(inspect.getdoc(target_of(function)))
        self.description = doc.description
        self._context: str | None = None
        self._pydantics: dict[str, PydanticParameter] = {}
        self._schemas = Schemas()
        self._fields: list[Any] = []
        self._properties: dict[str, Any] = {}
        bound = function.keywords if isinstance(function, functools.partial) else {}
        for key, parameter in parameters.items():
            if key not in bound and not self._is_context(key, parameter, hints.get(key, Any)):
                self._add(key, hints.get(key, Any), parameter.default, doc.texts.get(key))
        self._record = msgspec.defstruct("Arguments", self._fields, kw_only=True, forbid_unknown_fields=True)
        self._names = tuple(self._record.__struct_fields__)
        required = (each[0] for each in self._fields if len(each) == 2)
        self.schema = record(self._properties, required)
        self._holds_records = bool(self._schemas.definitions)
        if self._schemas.definitions:
            self.schema["$defs"] = self._schemas.definitions

    def convert(self, arguments: dict[str, Any]) -> Any:
        """The arguments as a record; an exception of any kind for those that do not fit."""
        try:
            made = msgspec.convert(arguments, self._record, dec_hook=_decoded)
        except msgspec.ValidationError as error:
            try:  # JSON Schema takes 3.0 for an integer, and some providers write whole numbers so
                made = msgspec.convert(_with_whole_numbers(arguments), self._record, dec_hook=_decoded)
            except msgspec.ValidationError:
                raise error from None
        if self._holds_records:
            for key, value in arguments.items():
                told = unknown_field(value, self._properties[key], self._schemas.definitions, f"$.{key}")
                if told is not None and key not in self._pydantics:
                    raise ValueError(told)
        for key, parameter in self._pydantics.items():
            if key in arguments:
                setattr(made, key, parameter.convert(arguments[key]))
        return made

    def named(self, record: Any) -> dict[str, Any]:
        """The arguments of a record by name."""
        return {name: getattr(record, name) for name in self._names}

    def keywords(self, record: Any, context: ToolContext[Any]) -> dict[str, Any]:
        """What the function is called with."""
        keywords = self.named(record)
        if self._context is not None:
            keywords[self._context] = context
        return keywords

    def _is_context(self, key: str, parameter: inspect.Parameter, hint: Any) -> bool:
        """Whether the parameter is the call's context; ``InvalidDefinition`` for one that the model cannot give."""
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidDefinition(
                f"tool {self._tool!r}: parameter {_written(parameter)!r} must be an ordinary one that can be given by "
                f"name{_WAYS_OUT[parameter.kind]}",
                parameter=key,
            )
        if key.startswith("__"):
            raise InvalidDefinition(
                f"tool {self._tool!r}: parameter {key!r} must not begin with two underscores; give it another name"
            )
        if not _is_context(hint):
            return False
        if self._context is not None:
            raise InvalidDefinition(f"tool {self._tool!r}: two parameters, {self._context!r} and {key!r}, are contexts")
        self._context = key
        return True

    def _add(self, key: str, hint: Any, default: Any, text: str | None) -> None:
        said = default
        hint, default, required = unfolded(hint, default)
        try:
            if said is None and not _takes_none(hint):
                hint = Optional[hint]  # noqa: UP045 - a model may say the default that it is shown
            if is_pydantics(hint):
                self._pydantics[key] = parameter = PydanticParameter(key, hint)
                schema, taken = parameter.schema(self._schemas), Any
            else:
                taken = with_constraints(hint)
                schema = self._schemas.of(described(taken))
                msgspec.defstruct("Arguments", [(key, taken)])  # what is told of it must also be read
        except (SchemaError, TypeError, ValueError, RecursionError) as error:
            raise InvalidDefinition(
                f"tool {self._tool!r}: no JSON Schema for its parameter {key!r}: {error}", parameter=key
            ) from error
        more = {"description": text} if text else {}
        if required or default is inspect.Parameter.empty:
            self._fields.append((key, taken))
        else:
            self._fields.append((key, taken, _kept(default)))
            shown = default_as_json(default)
            more |= {} if shown is NODEFAULT else {"default": shown}
        self._properties[key] = with_more(schema, more)


_WAYS_OUT = {
    inspect.Parameter.POSITIONAL_ONLY: ": take away the / behind it",
    inspect.Parameter.VAR_POSITIONAL: ": take a list; a decorator that made it needs functools.wraps",
    inspect.Parameter.VAR_KEYWORD: ": take a dict; a decorator that made it needs functools.wraps",
}


def _written(parameter: inspect.Parameter) -> str:
    stars: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return f"{stars.get(parameter.kind, '')}{parameter.name}"


def _unresolved(name: str, function: Any, error: NameError) -> InvalidDefinition:
    """The error for an annotation that holds a name which is not there when the tool is declared."""
    written = getattr(function, "__annotations__", {})
    found = [key for key, hint in written.items() if re.search(rf"\b{re.escape(str(error.name))}\b", str(hint))]
    where = f" of {found[0]!r}" if found else ""
    return InvalidDefinition(
        f"tool {name!r}: the annotation{where} cannot be read: {error}; define or import it in the module itself: not "
        "in a function, not behind the tool, and not under TYPE_CHECKING alone",
        parameter=found[0] if found else None,
    )


def _refuse_unbound(name: str, function: Callable[..., Any], parameters: Mapping[str, object]) -> None:
    """A method that no object is bound to would ask the model for the object."""
    first = next(iter(parameters), "")
    within = getattr(target_of(function), "__qualname__", "").rpartition(".")[0]
    bound = function.keywords if isinstance(function, functools.partial) else {}
    if first in ("self", "cls") and first not in bound and within and not within.endswith("<locals>"):
        raise InvalidDefinition(
            f"tool {name!r}: it is a method of class {within!r} without an object, so the model would be asked for "
            f"{first!r}; leave the method as it is and make a tool of it for one object: tool(obj.{name}), or mark "
            "such methods with @tool_method and make tools of all of them: tools_of(obj)"
        )


def _kept(default: Any) -> Any:
    """A default as the record has it: a new one for each call if a call could change it for the next."""
    return msgspec.field(default_factory=lambda: deepcopy(default)) if _is_mutable(default) else default


def _is_mutable(default: object) -> bool:
    """Whether a call could change this default for the next one. (Others, sentinels say, keep their identity.)"""
    if isinstance(default, type):
        return False
    kind = type(default)
    records = (
        isinstance(default, Struct) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__pydantic_fields__")
    )
    return records or isinstance(default, MutableSequence | MutableMapping | MutableSet)


def _is_context(hint: Any) -> bool:
    """Whether a parameter's type is the context: as such, of some dependencies, annotated, or optional."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _is_context(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_context, get_args(hint)))
    return hint is ToolContext or origin is ToolContext


def _with_whole_numbers(value: Any) -> Any:
    """JSON data in which floats that are whole, and are so for certain, are integers."""
    if type(value) is float and value.is_integer() and abs(value) <= WHOLE_FLOAT_MAX:
        return int(value)
    if type(value) is list:
        return [_with_whole_numbers(each) for each in value]
    return {key: _with_whole_numbers(each) for key, each in value.items()} if type(value) is dict else value


def _takes_none(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _takes_none(get_args(hint)[0])
    return hint in (Any, None, type(None)) or (
        origin in (typing.Union, types.UnionType) and any(map(_takes_none, get_args(hint)))
    )


def _decoded(kind: Any, value: Any) -> Any:
    """What msgspec asks for types that it does not know: paths."""
    if kind in PATHS and isinstance(value, str):
        return PATHS[kind](value)
    raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
