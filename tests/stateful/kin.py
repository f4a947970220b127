"""Agents as tools, as programs know them: who calls whom, what each is shown, and lanes of calls as steps name them.

A host drives an agent of handle 0 or 1. Its agents are scouts, and theirs are deep; nobody is below those.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.stateful.programs import Reply

KIN: dict[str, Literal["none", "path"]] = {"agent": "none", "kin": "path", "deep": "path"}
"""The tools that are agents, and what each is shown before its prompt. They run alone, as every barrier."""
TOOLS_OF_KIN: tuple[tuple[str, ...], ...] = (
    ("safe", "never", "alone", "deep"),
    ("safe", "never", "alone"),
    ("safe", "alone"),
    (),
)
"""What agents of handles from 2 on can do: scouts of the first two, the deep one, and one that is not there."""
ABSENT = 5
_CALLED = {(0, "agent"): 2, (0, "kin"): 2, (1, "agent"): 3, (1, "kin"): 3, (2, "deep"): 4}
_NAMES = ("agent", "agent", "scout", "scout", "deep")
LEVELS = (0, 0, 1, 1, 2, 2)
"""How far below a host's agent that of each handle is."""
FROM_NEWEST, FROM_OLDEST = 100, 1_000
"""Lanes of calls as steps name them: those before the newest, which become those behind the oldest."""


def called_handle(handle: int, tool: str) -> int:
    """The handle of the agent that an agent's tool is; that of the absent one if it has none."""
    return _CALLED.get((handle, tool), ABSENT)


def own_handle(tool: str) -> int:
    """The handle with which a host opens the lane of such a call."""
    return 4 if tool == "deep" else 2


def agent_name(handle: int) -> str:
    return _NAMES[handle]


def spoken(reply: Reply, handle: int) -> Reply:
    """What an agent of this handle says of a reply: each names those that it calls.

    A scout's call of an agent is its last one, since in a process without that agent it would hold nothing back.
    """
    level, calls = LEVELS[handle], []
    for call in reply.calls:
        if level == 0 or call.tool in ("safe", "key", "never", "alone", "ghost"):
            calls.append(call)
        elif call.tool not in KIN:
            calls.append(replace(call, tool="ghost"))
        elif level == 1:
            calls.append(replace(call, tool="deep"))
            break
        else:
            calls.append(replace(call, tool="ghost"))
    return replace(reply, calls=tuple(calls))
