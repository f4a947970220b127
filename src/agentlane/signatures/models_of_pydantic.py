"""Parameters that pydantic reads: found by their types, described and checked by pydantic, which is not imported."""

from __future__ import annotations

import sys
from typing import Annotated, Any, get_args, get_origin

import msgspec

from agentlane.signatures.constraints import SchemaError, fields_of, inner_types
from agentlane.signatures.schema import Schemas, any_of, canonical, fixed_array, one_of, with_more

PROBLEMS_MAX = 10
INPUT_LENGTH_MAX = 80
_FORMATS = frozenset({"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_DROPPED = frozenset({"title", "discriminator", "uniqueItems", "writeOnly", "readOnly", "deprecated", "examples"})


def is_pydantics(hint: Any) -> bool:
    """Whether pydantic is needed for a type hint: a model, an annotation of its, or a record that holds one."""
    return "pydantic" in sys.modules and _needed(hint, set())


def _needed(hint: Any, seen: set[Any]) -> bool:
    for each in (hint, *inner_types(hint)):
        if get_origin(each) is Annotated and any(map(_is_annotation, get_args(each)[1:])):
            return True
        cls = get_origin(each) or each
        alias = getattr(each, "__value__", None) if type(each).__name__ == "TypeAliasType" else None
        if alias is not None and each not in seen:
            seen.add(each)
            if _needed(alias, seen):
                return True
        if not isinstance(cls, type) or cls in seen:
            continue
        seen.add(cls)
        if hasattr(cls, "__get_pydantic_core_schema__") or hasattr(cls, "__pydantic_core_schema__"):
            return True
        if any(_needed(inner, seen) for inner in fields_of(cls).values()):
            return True
    return False


def _is_annotation(extra: Any) -> bool:
    return type(extra).__module__.partition(".")[0] == "pydantic"


def unfolded(hint: Any, default: Any) -> tuple[Any, Any, bool]:
    """Hint and default of a parameter whose default is pydantic's ``Field(...)``; and whether it must be given."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(default, pydantic.fields.FieldInfo):
        return hint, default, False
    required = default.is_required()
    return Annotated[hint, default], None if required else default.get_default(call_default_factory=True), required


class PydanticParameter:
    """One parameter, as pydantic's own adapter reads it."""

    def __init__(self, name: str, hint: Any) -> None:
        self._name = name
        pydantic: Any = sys.modules["pydantic"]
        try:
            self._adapter = pydantic.TypeAdapter(hint)
            self._schema = self._adapter.json_schema(ref_template="#/$defs/{model}")
        except Exception as error:  # models of pydantic 1 and foreign types raise whatever they like
            text = str(error).strip() or type(error).__name__
            raise SchemaError(
                f"pydantic cannot read it: {text.splitlines()[0]}; use models of pydantic 2, and no "
                "msgspec Structs with them in one parameter"
            ) from error
        self._error: type[Exception] = pydantic.ValidationError

    def schema(self, schemas: Schemas) -> dict[str, Any]:
        """Its schema; its definitions join those of the function."""
        raw = dict(self._schema)
        definitions = raw.pop("$defs", {})
        names = {wanted: wanted for wanted in definitions}
        known = {wanted: _plain(definitions[wanted], names) for wanted in definitions}
        if any(schemas.definitions.get(wanted) != each for wanted, each in known.items()):  # not those of another one
            for wanted in definitions:
                names[wanted] = schemas.free_name(wanted)
                schemas.definitions[names[wanted]] = {}
            for wanted, name in names.items():
                schemas.definitions[name].update(_plain(definitions[wanted], names))
        plain: dict[str, Any] = _plain(raw, names)
        return plain

    def convert(self, value: Any) -> Any:
        """The value that the function gets; ``ValueError`` that names each field that does not fit."""
        try:
            return self._adapter.validate_json(msgspec.json.encode(value))
        except self._error as error:
            raise ValueError(self._told(error)) from error

    def _told(self, error: Any) -> str:
        found = error.errors(include_url=False, include_context=False)
        told = [f"{each['msg']} - at `{self._place(each['loc'])}`{_given(each)}" for each in found[:PROBLEMS_MAX]]
        if len(found) > PROBLEMS_MAX:
            told.append(f"and {len(found) - PROBLEMS_MAX} more")
        return "; ".join(told)

    def _place(self, steps: tuple[int | str, ...]) -> str:
        return f"$.{self._name}" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in steps)


def _given(error: dict[str, Any]) -> str:
    if error["type"] == "missing":
        return ""
    text = repr(error.get("input"))
    return f", got {text if len(text) <= INPUT_LENGTH_MAX else text[:INPUT_LENGTH_MAX] + '...'}"


def _plain(schema: Any, names: dict[str, str]) -> Any:
    """Pydantic's schema in the words of ours."""
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key not in _DROPPED}
    if plain.get("format") not in _FORMATS:
        plain.pop("format", None)
    if isinstance(plain.get("default"), list) and schema.get("uniqueItems"):
        plain["default"] = sorted(plain["default"], key=canonical)
    for key in ("items", "additionalProperties", "not"):
        if key in plain:
            plain[key] = _plain(plain[key], names)
    if "properties" in plain:
        plain["properties"] = {key: _plain(each, names) for key, each in plain["properties"].items()}
        plain.setdefault("required", [])
        plain.setdefault("additionalProperties", False)
    if "const" in plain or "enum" in plain:
        values = plain.pop("enum", None) or [plain.pop("const")]
        plain.pop("const", None)
        plain.pop("type", None)
        return with_more(one_of(values), plain)
    if "prefixItems" in plain:
        array = fixed_array([_plain(each, names) for each in plain["prefixItems"]], plain.get("minItems"))
        plain = {
            **array,
            **{key: value for key, value in plain.items() if key not in ("prefixItems", "items", "maxItems")},
        }
    elif plain.get("type") == "array":
        plain.setdefault("items", {})
    if len(plain.get("allOf", [])) > 1:
        plain["allOf"] = [_plain(each, names) for each in plain["allOf"]]
        return plain
    choices = plain.pop("anyOf", None) or plain.pop("oneOf", None) or plain.pop("allOf", None)
    if choices:
        return with_more(any_of([_plain(each, names) for each in choices]), plain)
    reference = plain.pop("$ref", None)
    if reference is not None:
        name = reference.rsplit("/", 1)[-1]
        return with_more({"$ref": f"#/$defs/{names.get(name, name)}"}, plain)
    return plain
