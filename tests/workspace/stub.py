"""A call's context without a session: what the tools of a workspace ask of it, kept where a test can look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentlane import RetryTool, Tool, ToolResult
from agentlane.tools.workspace import Workspace, WorkspaceLimits


class Ctx:
    """One call; used again it is a second start of the same call, with its memos."""

    def __init__(self, key: str = "s/o/t#d/0") -> None:
        self.idempotency_key = key
        self.cancelled = False
        self.memos: dict[str, Any] = {}
        self.told: list[str] = []
        self.on_progress: Callable[[str], None] = lambda text: None

    async def memo(self, name: str, default: Any = None) -> Any:
        return self.memos.get(name, default)

    async def set_memo(self, name: str, value: Any) -> None:
        self.memos[name] = value

    async def progress(self, content: str) -> None:
        self.told.append(content)
        self.on_progress(content)


class Hands:
    """The tools of a workspace over one folder, called as a model calls them."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.workspace = Workspace(folder, limits=WorkspaceLimits(**limits))
        self.tools: dict[str, Tool[..., Any]] = {each.name: each for each in self.workspace.tools()}

    def __call__(self, name: str, ctx: Ctx | None = None, **arguments: Any) -> str:
        """What the model reads; a refusal begins with ``refused:``."""
        try:
            made = self._called(name, ctx, arguments)
            return shown(asyncio.run(made) if self.tools[name].is_async else made)
        except RetryTool as error:
            return f"refused: {error}"

    async def text(self, name: str, ctx: Ctx | None = None, **arguments: Any) -> str:
        try:
            return shown(await self.value(name, ctx, **arguments))
        except RetryTool as error:
            return f"refused: {error}"

    async def value(self, name: str, ctx: Ctx | None = None, **arguments: Any) -> Any:
        made = self._called(name, ctx, arguments)
        return await made if self.tools[name].is_async else made

    def _called(self, name: str, ctx: Ctx | None, arguments: dict[str, Any]) -> Any:
        tool = self.tools[name]
        return tool.call(tool.check(arguments, None), ctx or Ctx())  # type: ignore[arg-type]


def shown(value: Any) -> str:
    if isinstance(value, ToolResult):
        return value.content if isinstance(value.content, str) else repr(value.content)
    return str(value)


def tree(folder: Path) -> dict[str, bytes | str]:
    """All that is below a folder: bytes of files, targets of links, and that folders are there."""
    found: dict[str, bytes | str] = {}
    for each in sorted(folder.rglob("*")):
        name = str(each.relative_to(folder))
        found[name] = str(each.readlink()) if each.is_symlink() else each.read_bytes() if each.is_file() else "folder"
    return found
