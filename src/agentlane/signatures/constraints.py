"""Annotations of others as msgspec knows them: descriptions, and the constraints of annotated-types."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from typing_extensions import Doc, is_typeddict

_KEYWORDS = {
    "Gt": {"gt": "gt"},
    "Ge": {"ge": "ge"},
    "Lt": {"lt": "lt"},
    "Le": {"le": "le"},
    "MultipleOf": {"multiple_of": "multiple_of"},
    "MinLen": {"min_length": "min_length"},
    "MaxLen": {"max_length": "max_length"},
}
"""Constraints of annotated-types that msgspec has too: class, and attribute by the keyword of ``msgspec.Meta``."""


class SchemaError(Exception):
    """There is no schema; the text says what for, why, and what to do instead."""


def with_constraints(hint: Any) -> Any:
    """A type hint in which constraints of annotated-types, and descriptions, are said as ``msgspec.Meta``.

    ``SchemaError`` for one that msgspec does not have, and for one on a field of a record, where msgspec would not
    look at it: what is declared and not checked would be worse than nothing.
    """
    _refuse_inside_records(hint, set())
    return _translated(hint)


def _translated(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *extras = get_args(hint)
        translated = _translated(inner)
        for extra in extras:
            for meta in _metas(extra):
                translated = Annotated[translated, meta]
        return translated
    if origin in (Union, types.UnionType):
        return Union[tuple(_translated(each) for each in get_args(hint))]  # noqa: UP007
    if origin is None or origin is typing.Literal or not _foreign_within(hint):
        return hint
    return hint.copy_with(tuple(map(_translated, get_args(hint)))) if hasattr(hint, "copy_with") else _rebuilt(hint)


def _rebuilt(hint: Any) -> Any:
    return get_origin(hint)[tuple(_translated(each) for each in get_args(hint))]


def _metas(extra: Any) -> Iterator[Any]:
    """What one annotation says, as ``msgspec.Meta`` (which itself is kept); nothing for what has no meaning here."""
    if isinstance(extra, msgspec.Meta):
        yield extra
    elif isinstance(extra, str):
        yield msgspec.Meta(description=extra)
    elif isinstance(extra, Doc):
        yield msgspec.Meta(description=extra.documentation)
    elif _is_constraint(extra):
        for each in _single(extra):
            keywords = _KEYWORDS.get(type(each).__name__)
            if keywords is None:
                raise SchemaError(f"the constraint {each!r} has no JSON Schema; check it in the function")
            yield msgspec.Meta(**{key: getattr(each, name) for key, name in keywords.items()})


def _single(extra: Any) -> Iterable[Any]:
    """One constraint, or those that a group (``Interval``, ``Len``) stands for."""
    name = type(extra).__name__
    return extra if name not in _KEYWORDS and hasattr(type(extra), "__iter__") else (extra,)


def _is_constraint(extra: Any) -> bool:
    return any(each.__module__.partition(".")[0] == "annotated_types" for each in type(extra).__mro__)


def _foreign_within(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return any(not isinstance(extra, msgspec.Meta) for extra in get_args(hint)[1:]) or _foreign_within(
            get_args(hint)[0]
        )
    return any(map(_foreign_within, get_args(hint)))


def _refuse_inside_records(hint: Any, seen: set[Any]) -> None:
    for each in (hint, *inner_types(hint)):
        if not isinstance(each, type) or each in seen:
            continue
        seen.add(each)
        for name, inner in fields_of(each).items():
            found = next(filter(_is_constraint, _annotations(inner)), None)
            if found is not None:
                raise SchemaError(
                    f"field {name!r} of {each.__name__} has the constraint {found!r}, which would not be checked "
                    "there; say it as Annotated[..., msgspec.Meta(...)]"
                )
            _refuse_inside_records(inner, seen)


def inner_types(hint: Any) -> Iterator[Any]:
    """What a hint is made of, at any depth, annotations left out."""
    parts = get_args(hint)
    if get_origin(hint) is Annotated:
        parts = parts[:1]
    elif get_origin(hint) is typing.Literal:
        return
    for part in parts:
        yield part
        yield from inner_types(part)


def fields_of(record: type) -> dict[str, Any]:
    """The hints of a record's fields; empty for what is none, and where they cannot be read."""
    named_tuple = issubclass(record, tuple) and hasattr(record, "_fields")
    if not (
        issubclass(record, msgspec.Struct) or dataclasses.is_dataclass(record) or is_typeddict(record) or named_tuple
    ):
        return {}
    try:
        return typing.get_type_hints(record, include_extras=True)
    except Exception:  # msgspec says what is wrong with it
        return {}


def _annotations(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from get_args(hint)[1:]
        yield from _annotations(get_args(hint)[0])
    elif get_origin(hint) is not typing.Literal:
        for part in get_args(hint):
            yield from _annotations(part)
