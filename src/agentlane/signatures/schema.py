"""The JSON Schema of a type: few keywords, no extra properties, and the same bytes in every process."""

from __future__ import annotations

import enum
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as inspection

from agentlane.data.border import clean_json
from agentlane.errors import InvalidMessage
from agentlane.signatures.constraints import SchemaError
from agentlane.signatures.docstrings import read_docstring

PATHS: dict[Any, type[pathlib.PurePath]] = {
    os.PathLike: pathlib.Path,
    pathlib.Path: pathlib.Path,
    pathlib.PosixPath: pathlib.Path,
    pathlib.PurePath: pathlib.PurePath,
    pathlib.PurePosixPath: pathlib.PurePosixPath,
}
"""What a text is made into for a parameter that is a path."""

_BY_HAND = "or build the tool by hand: Tool(name, function, parameters=..., validate=...)"
_WAYS_OUT = (
    ("more than one dict-like", "give the records tags (class A(msgspec.Struct, tag=True)), or a parameter each"),
    ("more than one dataclass", "make them msgspec Structs with tags (class A(msgspec.Struct, tag=True))"),
    ("more than one TypedDict", "make them msgspec Structs with tags (class A(msgspec.Struct, tag=True))"),
    ("more than one array-like", "take one of them, or a parameter each"),
    ("more than one str-like", "take str, and tell them apart in the function"),
    ("more than one int-like", "take int, and tell them apart in the function"),
    ("custom type", "take one of them, or a parameter each"),
    ("Can only set", "say it of the type itself: Annotated[int, Meta(ge=1)] | None, not Annotated[int | None, ...]"),
    ("Enums must contain", "give its members values that are all text or all whole numbers"),
)
_FORMATS = {
    inspection.DateType: "date",
    inspection.TimeType: "time",
    inspection.TimeDeltaType: "duration",
    inspection.UUIDType: "uuid",
}


def described(hint: Any) -> inspection.Type:
    """What msgspec sees in a type hint; ``SchemaError`` with the way out where it sees nothing."""
    try:
        return inspection.type_info(hint)
    except RecursionError as error:
        raise SchemaError(
            "its type never ends; write the recursion as a msgspec Struct or a dataclass that names itself, " + _BY_HAND
        ) from error
    except Exception as error:  # a foreign type may raise anything while its fields are looked at
        text = str(error)
        way = next((way for sign, way in _WAYS_OUT if sign in text), "take str, int, a list, or a msgspec Struct")
        raise SchemaError(f"{text.splitlines()[0] if text else type(error).__name__}; {way}, {_BY_HAND}") from error


def default_as_json(value: Any) -> Any:
    """A default as JSON data in one order; ``NODEFAULT`` where it is none. Sets, which have no order, are sorted."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_plain)
        return clean_json(plain, "default")
    except (InvalidMessage, TypeError, ValueError, RecursionError, NotImplementedError):
        return NODEFAULT


def _plain(value: Any) -> Any:
    """What msgspec asks for what it does not know: paths, and models of pydantic."""
    if isinstance(value, pathlib.PurePath):
        return os.fspath(value)
    if hasattr(type(value), "__pydantic_fields__"):
        return _model_as_json(value)
    raise TypeError(type(value).__name__)


def _model_as_json(model: Any) -> Any:
    """A model of pydantic by the names of its schema; ``TypeError`` for one that would not be read back as itself."""
    try:
        plain = msgspec.to_builtins(
            model.model_dump(by_alias=True), str_keys=True, order="deterministic", enc_hook=_plain
        )
        if type(model).model_validate_json(msgspec.json.encode(plain)) == model:
            return plain
    except Exception as error:  # validators and serializers are foreign code
        raise TypeError(type(model).__name__) from error
    raise TypeError(type(model).__name__)


class Schemas:
    """Makes the schemas of one function's parameters; records and enums are ``definitions`` that they refer to."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._names: dict[Any, str] = {}

    def of(self, kind: inspection.Type) -> dict[str, Any]:
        """The schema of one type."""
        match kind:
            case inspection.Metadata():
                return with_more(self.of(kind.type), kind.extra_json_schema or {})
            case inspection.AnyType():
                return {}
            case inspection.NoneType():
                return {"type": "null"}
            case inspection.BoolType():
                return {"type": "boolean"}
            case inspection.IntType() | inspection.FloatType():
                return {"type": "integer" if isinstance(kind, inspection.IntType) else "number", **_range_of(kind)}
            case inspection.StrType():
                return {"type": "string", **_length_of(kind, "Length"), **_set(pattern=kind.pattern)}
            case inspection.BytesType() | inspection.ByteArrayType():
                return {"type": "string", "description": "Base64."}
            case inspection.DecimalType():
                return {"type": "string", "description": "A decimal number, as text."}
            case inspection.DateTimeType():
                return _moment("date-time", kind.tz)
            case inspection.TimeType():
                return _moment("time", kind.tz)
            case inspection.DateType() | inspection.TimeDeltaType() | inspection.UUIDType():
                return {"type": "string", "format": _FORMATS[type(kind)]}
            case inspection.LiteralType():
                return one_of(kind.values)
            case inspection.UnionType():
                return any_of([self.of(each) for each in kind.types])
            case inspection.TupleType():
                return fixed_array([self.of(each) for each in kind.item_types])
            case inspection.CollectionType():
                return {"type": "array", "items": self.of(kind.item_type), **_length_of(kind, "Items")}
            case inspection.DictType():
                if not _takes_text(kind.key_type):
                    raise SchemaError(
                        "JSON has no other keys than text; take dict[str, ...] and make its keys in the function, "
                        + _BY_HAND
                    )
                length = _length_of(kind, "Properties")
                return {"type": "object", "additionalProperties": self.of(kind.value_type), **length}
            case inspection.CustomType() if kind.cls in PATHS:
                return {"type": "string"}
            case (
                inspection.EnumType()
                | inspection.StructType()
                | inspection.DataclassType()
                | inspection.TypedDictType()
                | inspection.NamedTupleType()
            ):
                return {"$ref": f"#/$defs/{self._defined(kind)}"}
            case _:
                pass
        cls = getattr(kind, "cls", type(kind))
        if isinstance(kind, inspection.RawType):
            raise SchemaError(f"msgspec.Raw holds text that is not read yet; annotate it with Any, {_BY_HAND}")
        if cls is object:
            raise SchemaError(f"object has no schema; annotate it with Any, {_BY_HAND}")
        name = getattr(cls, "__name__", str(cls))
        raise SchemaError(
            f"{name} has no JSON Schema; take text, numbers, lists or a record (a msgspec Struct, a dataclass) and "
            f"make the {name} in the function, {_BY_HAND}"
        )

    def free_name(self, wanted: str) -> str:
        """A name that no definition has."""
        name, count = wanted, 1
        while name in self.definitions:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def _defined(self, kind: Any) -> str:
        name = self._names.get(kind.cls)
        if name is None:
            said = str(getattr(kind.cls, "__name__", None) or kind.cls)
            said = said if not hasattr(kind.cls, "__args__") else _generic_name(kind.cls)
            wanted = "".join(each if each.isascii() and (each.isalnum() or each in "_-") else "_" for each in said)
            name = self._names[kind.cls] = self.free_name(wanted)
            self.definitions[name] = {}  # its place, for a type that holds itself
            self.definitions[name].update(self._definition(kind))
        return name

    def _definition(self, kind: Any) -> dict[str, Any]:
        doc = read_docstring(_own_doc(kind.cls))
        schema: dict[str, Any] = {}
        if isinstance(kind, inspection.EnumType):
            schema = one_of(member.value for member in kind.cls)
        elif isinstance(kind, inspection.NamedTupleType) or getattr(kind, "array_like", False):
            tag = [] if getattr(kind, "tag", None) is None else [one_of((kind.tag,))]
            items = [self._field(each, doc.texts) for each in kind.fields]
            schema = fixed_array([*tag, *items], least=len(tag) + sum(each.required for each in kind.fields))
        else:
            properties: dict[str, Any] = {}
            if getattr(kind, "tag_field", None) is not None:
                properties[kind.tag_field] = one_of((kind.tag,))
            required = [*properties, *(each.encode_name for each in kind.fields if each.required)]
            properties.update((each.encode_name, self._field(each, doc.texts)) for each in kind.fields)
            schema = record(properties, required)
        return with_more(schema, _set(description=doc.description or None))

    def _field(self, field: inspection.Field, texts: dict[str, str]) -> dict[str, Any]:
        schema = self.of(field.type)
        default = field.default
        if field.default_factory in (list, dict, set, frozenset):
            default = field.default_factory()  # that of another one may be different each time
        default = NODEFAULT if default is NODEFAULT or default is msgspec.UNSET else default_as_json(default)
        text = None if "description" in schema else texts.get(field.name)
        more = _set(description=text) | ({} if default is NODEFAULT else {"default": default})
        return with_more(schema, more)


def _takes_text(kind: inspection.Type) -> bool:
    """Whether a text can be read as a key of this type."""
    match kind:
        case inspection.Metadata():
            return _takes_text(kind.type)
        case inspection.UnionType():
            return any(map(_takes_text, kind.types))
        case inspection.LiteralType():
            return any(isinstance(each, str) for each in kind.values)
        case inspection.EnumType():
            return any(isinstance(each.value, str) for each in kind.cls)
        case inspection.IntType() | inspection.FloatType() | inspection.BoolType() | inspection.NoneType():
            return False
        case _:
            return not isinstance(kind, inspection.CollectionType | inspection.TupleType)


def with_more(schema: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A schema with more keywords. Beside a reference providers take none, so that it becomes a choice of one."""
    if not more:
        return schema
    return {**({"anyOf": [schema]} if "$ref" in schema else schema), **more}


def record(properties: dict[str, Any], required: Iterable[str]) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def any_of(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A choice: in one order, whichever way the type was written and cached; null is the last."""
    found = {canonical(each): each for each in schemas}
    ordered = sorted(found, key=lambda text: (text == '{"type":"null"}', text))
    return found[ordered[0]] if len(ordered) == 1 else {"anyOf": [found[text] for text in ordered]}


_KINDS: dict[type, str] = {bool: "boolean", int: "integer", str: "string", float: "number", type(None): "null"}


def one_of(values: Iterable[Any]) -> dict[str, Any]:
    """One of some values, with the type that strict providers want beside ``enum``."""
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        plain = value.value if isinstance(value, enum.Enum) else value
        kind = next((name for base, name in _KINDS.items() if isinstance(plain, base)), "string")
        by_kind.setdefault(kind, []).append(plain)
    return any_of(
        {"type": "null"} if kind == "null" else {"type": kind, "enum": found} for kind, found in by_kind.items()
    )


def fixed_array(items: Sequence[dict[str, Any]], least: int | None = None) -> dict[str, Any]:
    """A list of so many items. Providers want ``items`` and not ``prefixItems``: the order is told in words."""
    schema: dict[str, Any] = {"type": "array", "items": any_of(items) if items else {}}
    schema |= {"minItems": len(items) if least is None else least, "maxItems": len(items)}
    if len({canonical(each) for each in items}) > 1:
        schema["description"] = "In this order: " + ", ".join(map(canonical, items)) + "."
    return schema


def canonical(schema: Any) -> str:
    """One text for equal JSON data."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _generic_name(alias: Any) -> str:
    inner = ",".join(getattr(each, "__name__", str(each)) for each in alias.__args__)
    return f"{alias.__origin__.__name__}[{inner}]"


def _own_doc(cls: Any) -> str | None:
    """What a class says of itself: not what it inherits, and not what Python writes for it."""
    cls = getattr(cls, "__origin__", cls)
    doc = vars(cls).get("__doc__")
    made = ("An enumeration.", f"{cls.__name__}(")
    return doc if isinstance(doc, str) and not doc.startswith(made) else None


def _moment(format: str, tz: bool | None) -> dict[str, Any]:
    """RFC 3339 asks for an offset; where there must be none the format would mislead."""
    return (
        {"type": "string", "format": format} if tz is not False else {"type": "string", "description": _LOCAL[format]}
    )


_LOCAL = {"date-time": "An ISO 8601 date and time without an offset.", "time": "An ISO 8601 time without an offset."}


def _range_of(kind: Any) -> dict[str, Any]:
    return _set(
        minimum=kind.ge,
        exclusiveMinimum=kind.gt,
        maximum=kind.le,
        exclusiveMaximum=kind.lt,
        multipleOf=kind.multiple_of,
    )


def _length_of(kind: Any, of: str) -> dict[str, Any]:
    least, most = f"min{of}", f"max{of}"
    return _set(**{least: kind.min_length, most: kind.max_length})


def _set(**keywords: Any) -> dict[str, Any]:
    return {key: value for key, value in keywords.items() if value is not None}
