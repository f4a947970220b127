"""The library's own scenarios for the crash matrix, which `python -m agentlane.testing.matrix` plays."""

from typing import Any

from agentlane.testing.matrix.builtin.aborts import ABORTS
from agentlane.testing.matrix.builtin.asked import ASKS
from agentlane.testing.matrix.builtin.bounds import BOUNDS
from agentlane.testing.matrix.builtin.changed import CHANGED
from agentlane.testing.matrix.builtin.children import CHILDREN
from agentlane.testing.matrix.builtin.compacting import COMPACTING
from agentlane.testing.matrix.builtin.fallback import FALLBACKS
from agentlane.testing.matrix.builtin.history import HISTORY
from agentlane.testing.matrix.builtin.hooks import HOOKS
from agentlane.testing.matrix.builtin.imports import IMPORTS
from agentlane.testing.matrix.builtin.inbox import INBOX
from agentlane.testing.matrix.builtin.limited import LIMITED
from agentlane.testing.matrix.builtin.outputs import OUTPUTS
from agentlane.testing.matrix.builtin.plain import PLAIN
from agentlane.testing.matrix.builtin.writes import WRITES
from agentlane.testing.matrix.scenario import Scenario

SCENARIOS: tuple[Scenario[Any], ...] = (
    *(*PLAIN, *ABORTS, *BOUNDS, *CHANGED, *WRITES, *IMPORTS),
    *(*CHILDREN, *HISTORY, *LIMITED, *FALLBACKS, *OUTPUTS, *ASKS, *HOOKS, *COMPACTING, *INBOX),
)
"""Every scenario of the library's own."""

__all__ = [
    *(
        "ABORTS",
        "ASKS",
        "BOUNDS",
        "CHANGED",
        "CHILDREN",
        "COMPACTING",
        "FALLBACKS",
        "HISTORY",
        "HOOKS",
        "IMPORTS",
        "INBOX",
    ),
    *("LIMITED", "OUTPUTS", "PLAIN", "SCENARIOS", "WRITES"),
]
