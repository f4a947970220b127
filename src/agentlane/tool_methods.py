"""Tools of an object with state: methods marked in its class, bound to it and made tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from agentlane.approval import ApprovalPredicate
from agentlane.data.operations import ReplayPolicy
from agentlane.errors import InvalidDefinition
from agentlane.tool import Tool, tool

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__agentlane_tool__"


@overload
def tool_method(function: F, /) -> F: ...
@overload
def tool_method(
    *,
    name: str | None = None,
    description: str | None = None,
    replay: ReplayPolicy = "never",
    parallel: bool = True,
    timeout_ms: int | None = None,
    max_result_bytes: int | None = None,
    approval: bool | ApprovalPredicate = False,
    approval_expires_ms: int | None = None,
) -> Callable[[F], F]: ...
def tool_method(function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """Mark a method that ``tools_of`` makes a tool of. It stays the method it is; the options are those of ``tool``."""

    def mark(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidDefinition(
                f"tool_method: {function!r} is no method of a class body; below @staticmethod, @classmethod or "
                "@property there is one"
            )
        setattr(function, _MARK, options)
        return function

    return mark if function is None else mark(function)


def tools_of(owner: object) -> tuple[Tool[..., Any], ...]:
    """The marked methods of an object as tools that work on it: those of base classes first, as they are written.

    A call uses the object as any caller would: calls of one answer run at once unless a tool says ``parallel=False``,
    plain methods in threads. What the object remembers dies with the process; what a replay needs belongs in memos.

    Raises ``InvalidDefinition`` for a class, where nothing is marked, for a method that overrides a marked one without
    a mark of its own (what its base promises may not be true of it), and as ``tool`` does.
    """
    if inspect.isclass(owner):
        raise InvalidDefinition(f"tools_of({owner.__name__}): an object is needed here, not its class")
    kind = type(owner)
    found: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        for key, value in vars(base).items():
            if _options(value) is not None:
                found[key] = None
    made = []
    for key in found:
        options = _options(inspect.getattr_static(kind, key))
        if options is None:
            raise InvalidDefinition(
                f"tools_of({kind.__name__}): method {key!r} overrides a tool; mark it with @tool_method, with the "
                "policy that is true of it"
            )
        made.append(tool(**options)(getattr(owner, key)))
    if not made:
        raise InvalidDefinition(f"tools_of({kind.__name__}): no method is marked with @tool_method")
    return tuple(made)


def _options(value: object) -> dict[str, Any] | None:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    options: dict[str, Any] | None = getattr(function, _MARK, None) if inspect.isfunction(function) else None
    return options
