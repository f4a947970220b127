"""The skills and templates of one agent together, as the agent needs them."""

from __future__ import annotations

from typing import Any

from agentlane.data.messages import UserMessage
from agentlane.data.requests import Skill, Template
from agentlane.skills.definitions import Folders
from agentlane.skills.load_skill import load_skill_tool
from agentlane.skills.skills import Skills
from agentlane.skills.templates import Templates
from agentlane.tool import Tool


class Library:
    """Everything that an agent has read. Raises ``InvalidDefinition`` for what cannot be."""

    def __init__(self, agent: str, skills: Folders, templates: Folders) -> None:
        self.skills = Skills(agent, skills)
        self.templates = Templates(agent, templates)
        self.tool: Tool[Any, Any] | None = load_skill_tool(self.skills) if self.skills.all else None

    def expand(self, request: Skill | Template) -> UserMessage:
        """The message that a clean request stands for."""
        return self.skills.expand(request) if isinstance(request, Skill) else self.templates.expand(request)
