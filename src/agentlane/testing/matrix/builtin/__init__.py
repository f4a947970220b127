"""The library's own scenarios for the crash matrix, which `python -m agentlane.testing.matrix` plays."""

from agentlane.testing.matrix.builtin.aborts import ABORTS
from agentlane.testing.matrix.builtin.asked import ASKS
from agentlane.testing.matrix.builtin.bounds import BOUNDS
from agentlane.testing.matrix.builtin.changed import CHANGED
from agentlane.testing.matrix.builtin.children import CHILDREN
from agentlane.testing.matrix.builtin.fallback import FALLBACKS
from agentlane.testing.matrix.builtin.history import HISTORY
from agentlane.testing.matrix.builtin.hooks import HOOKS
from agentlane.testing.matrix.builtin.limited import LIMITED
from agentlane.testing.matrix.builtin.outputs import OUTPUTS
from agentlane.testing.matrix.builtin.plain import PLAIN
from agentlane.testing.matrix.builtin.writes import WRITES

SCENARIOS = (
    *(*PLAIN, *ABORTS, *BOUNDS, *CHANGED, *WRITES),
    *(*CHILDREN, *HISTORY, *LIMITED, *FALLBACKS, *OUTPUTS, *ASKS, *HOOKS),
)
"""Every scenario of the library's own."""

__all__ = [
    "ABORTS",
    "ASKS",
    "BOUNDS",
    "CHANGED",
    "CHILDREN",
    "FALLBACKS",
    "HISTORY",
    "HOOKS",
    "LIMITED",
    "OUTPUTS",
    "PLAIN",
    "SCENARIOS",
    "WRITES",
]
