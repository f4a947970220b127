"""A starter set of tools over one folder: read, list, search, write, edit, delete, and run a command."""

from agentlane.tools.workspace.limits import WorkspaceLimits
from agentlane.tools.workspace.tools import Workspace

__all__ = ["Workspace", "WorkspaceLimits"]
