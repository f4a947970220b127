"""Whether a call needs a person's yes: what a tool's predicate is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias

from msgspec import Struct
from typing_extensions import TypeVar

Deps = TypeVar("Deps", default=Any)


class ApprovalInfo(Struct, Generic[Deps], frozen=True):
    """What an approval predicate is told beside the arguments: which call it is about, and the agent's dependencies."""

    session_id: str
    lane: str
    operation_id: str
    call_id: str
    tool: str
    deps: Deps


ApprovalPredicate: TypeAlias = Callable[[Any, ApprovalInfo[Any]], bool | Awaitable[bool]]
"""Whether this call is to be asked about. It gets the checked arguments: of a function its arguments by name, of a tool
built by hand what its ``validate`` gave. It may be asked again for the same call, and must not change anything."""
