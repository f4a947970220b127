"""What is behind a thing that can be called: the function that runs in the end, its name, and whether it is a class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from agentlane.errors import InvalidDefinition


def target_of(function: Any) -> Any:
    """What is run in the end: the function in a partial, the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function) or not callable(function):
        return function
    return type(function).__call__


def name_of(function: Callable[..., Any]) -> str:
    """The name that a tool made of it has if it is given none."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def refuse_class(name: str, function: Callable[..., Any]) -> None:
    """``InvalidDefinition`` for a class: a call would give an object."""
    if inspect.isclass(target_of(function)):
        raise InvalidDefinition(
            f"tool {name!r}: a class cannot be a tool, for a call would give an object; make a tool of a function "
            "that uses it, or of a method of one object: tool(obj.method)"
        )
