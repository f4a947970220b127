"""Fields that no record has: what a schema forbids and msgspec would let pass, in records inside of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unknown_field(value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any], place: str) -> str | None:
    """What to tell the model of the first unknown field; None if there is none. ``value`` fits in every other way."""
    schema = _followed(schema, definitions)
    if "anyOf" in schema:
        told = [
            unknown_field(value, each, definitions, place)
            for each in schema["anyOf"]
            if _may_be(value, _followed(each, definitions))
        ]
        return None if None in told or not told else told[0]
    if isinstance(value, list):
        items = schema.get("items", {})
        told = [unknown_field(each, items, definitions, f"{place}[{index}]") for index, each in enumerate(value)]
        return next(filter(None, told), None)
    if not isinstance(value, dict):
        return None
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key, inner in value.items():
        if others is False and key not in properties:
            known = ", ".join(f"`{each}`" for each in properties)
            return f"Object contains unknown field `{key}` - at `{place}`; it has {known or 'none'}"
        found = properties.get(key, others)
        if isinstance(found, dict) and (told_of := unknown_field(inner, found, definitions, f"{place}.{key}")):
            return told_of
    return None


def _followed(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def _may_be(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a choice can be meant: by its kind, and by the tags of records."""
    kind = schema.get("type")
    if isinstance(value, dict):
        tags = {key: each["enum"] for key, each in schema.get("properties", {}).items() if "enum" in each}
        return kind in (None, "object") and all(value.get(key, tags[key][0]) in tags[key] for key in tags)
    return kind in (None, "array") if isinstance(value, list) else True
