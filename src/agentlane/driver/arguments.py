"""The arguments that a call runs with: the model's, or those that took their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from agentlane.data.messages import ToolCallPart

ChangedArguments: TypeAlias = Mapping[int, dict[str, Any]]
"""Arguments other than the model's (``op.args``), by the index of their call in the batch."""


def effective_call(call: ToolCallPart, index: int, changed: ChangedArguments) -> ToolCallPart:
    """The call as it runs."""
    if index not in changed:
        return call
    return replace(call, arguments=changed[index], arguments_text=None)
