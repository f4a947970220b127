"""Everything public that can be awaited, iterated or entered asynchronously, found by looking at the package itself."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator
from typing import Any

PLACES = ("agentlane", "agentlane.storage")
ASYNC_METHODS = ("__await__", "__aenter__", "__aexit__", "__aiter__", "__anext__", "aclose")
STORES = ("MemoryStore", "JsonlStore", "SqliteStore")
"""What these have in common is ``Store``: its recipes run on each of them."""


def surface() -> dict[str, Any]:
    """Each asynchronous function or method by name: ``drive``, ``Session.close``. An inherited one is named once."""
    public = {name: getattr(importlib.import_module(place), name) for place in PLACES for name in _names(place)}
    classes = [each for each in public.values() if inspect.isclass(each)]
    found: dict[str, Any] = {}
    for name, each in public.items():
        if inspect.isclass(each):
            found.update(_methods(name, each, [other for other in classes if other is not each]))
        elif inspect.isfunction(each) and is_async(each):
            found[name] = each
    for store in STORES:
        for method in [each for each in found if each.startswith(f"{store}.")]:
            if method.replace(store, "Store", 1) in found:
                del found[method]
    return found


def is_async(function: Any) -> bool:
    """Whether what a function gives must be awaited, iterated or entered, told from how it is written and annotated."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    try:
        given = typing.get_type_hints(function).get("return")
    except NameError:  # a type that is known to type checkers alone: none of ours to await
        return False
    given = typing.get_origin(given) or given
    return inspect.isclass(given) and any(hasattr(given, each) for each in ASYNC_METHODS)


def _names(place: str) -> list[str]:
    return list(importlib.import_module(place).__all__)


def _methods(name: str, owner: type[Any], others: list[type[Any]]) -> Iterator[tuple[str, Any]]:
    for attribute in dir(owner):
        if attribute.startswith("_") and attribute not in ASYNC_METHODS:
            continue
        function = inspect.getattr_static(owner, attribute)
        if not inspect.isfunction(function) or (attribute not in ASYNC_METHODS and not is_async(function)):
            continue
        inherited = any(
            other in owner.__mro__ and inspect.getattr_static(other, attribute, None) is function for other in others
        )
        if not inherited:
            yield f"{name}.{attribute}", function
