"""The tool by which a model reads the skills of its agent: what one says, and the files beside it."""

from __future__ import annotations

from typing import Any

from agentlane.data.border import clean_text
from agentlane.skills.definitions import LOAD_SKILL
from agentlane.skills.files import Unreachable, Unreadable
from agentlane.skills.frontmatter import Malformed, decoded
from agentlane.skills.skills import FILE_BYTES_MAX, SKILL_FILE, Skills
from agentlane.tool import RetryTool, Tool, ToolResult

_DESCRIPTION = (
    "Read a skill: instructions for a kind of work. With `file`, read one of the files that belong to it instead."
)
_PARAMETERS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The skill's name."},
        "file": {"type": "string", "description": "The path of a file of the skill, as the skill gives it."},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def load_skill_tool(skills: Skills) -> Tool[Any, Any]:
    """The tool. It reads and changes nothing, so a call that was interrupted may run again."""

    def load_skill(given: dict[str, str], context: object) -> ToolResult:
        name, file = given["name"], given.get("file")
        skill = skills.all.get(name)
        if skill is None:
            raise RetryTool(f"There is no skill {name!r}. There are: {', '.join(skills.all)}.")
        details = {"skill": name, "digest": skill.digest}
        if file is None or file == SKILL_FILE:
            return ToolResult(content=skill.text(), details=details)
        try:
            text = decoded(skills.folders[name].read(file, FILE_BYTES_MAX))
        except Unreachable as error:  # where the folder is, is not the model's business
            raise RetryTool(f"Of skill {name!r}, the folder cannot be read any more, and so no file of it.") from error
        except Unreadable as error:
            raise RetryTool(f"Of skill {name!r}, {error}.") from error
        except Malformed as error:
            raise RetryTool(f"Of skill {name!r}, {file} cannot be shown: {error.why}.") from error
        return ToolResult(content=text, details={**details, "file": file})

    return Tool(
        LOAD_SKILL, load_skill, description=_DESCRIPTION, parameters=_PARAMETERS, validate=_checked, replay="safe"
    )


def _checked(arguments: dict[str, Any]) -> dict[str, str]:
    unknown = sorted(set(arguments) - {"name", "file"})
    if unknown:
        raise ValueError(f"there are two arguments, `name` and `file`; leave out {', '.join(unknown)}")
    if "name" not in arguments:
        raise ValueError("`name` must say which skill")
    for key, value in arguments.items():
        if not isinstance(value, str) and not (key == "file" and value is None):
            raise ValueError(f"`{key}` must be a text")
    return {key: clean_text(value) for key, value in arguments.items() if value is not None}
