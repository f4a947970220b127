"""The demo's tools: they work on a real folder, write down what they do outside the store, and can be held half way."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlane import ToolContext, ToolResult, tool


@dataclass
class Desk:
    """What the tools share: the folder they work on, the log of effects, and where this process holds them.

    ``hold`` names tools that are held half way, and ``all_held`` is set when ``hold_enough`` of them are.

    Every start and end of a tool is one line appended to ``log``. The store knows nothing of that file, so it is an
    independent witness of what happened in the world.
    """

    root: Path
    log: Path
    hold: frozenset[str] = frozenset()
    hold_enough: int = 0
    held: set[str] = field(default_factory=set)
    all_held: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, what: str, event: str, **more: Any) -> None:
        """Append one line to the log of effects, with this process's id."""
        line = json.dumps({"process": os.getpid(), "what": what, "event": event, **more}) + "\n"
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def begin(self, name: str, ctx: ToolContext[Desk], argument: str) -> None:
        """A tool starts."""
        again = f" again (start {ctx.attempt})" if ctx.recovered else ""
        print(f"  tool   {name}({argument}) starts{again}", flush=True)
        self.note(name, "start", call=ctx.call_id, attempt=ctx.attempt, key=ctx.idempotency_key)

    def end(self, name: str, ctx: ToolContext[Desk], content: str) -> ToolResult:
        """A tool is done: its result tells which process made it."""
        print(f"  tool   {name} is done", flush=True)
        self.note(name, "end", call=ctx.call_id)
        return ToolResult(content=content, details={"process": os.getpid(), "start": ctx.attempt})

    async def half_way(self, name: str) -> None:
        """Where the first process holds a tool until it is killed. Any other process just goes on."""
        if name not in self.hold:
            return
        print(f"  tool   {name} is half way, and held there", flush=True)
        self.note(name, "half way")
        self.held.add(name)
        if len(self.held) >= self.hold_enough:
            self.all_held.set()
        await asyncio.Event().wait()

    def inside(self, path: str) -> Path:
        """``path`` below the folder; the model gets an error result for any other."""
        found = (self.root / path).resolve()
        if not found.is_relative_to(self.root.resolve()):
            raise ValueError(f"{path} is outside of the folder")
        return found

    def files(self, path: str = ".") -> list[Path]:
        """The files below ``path``, in order."""
        return sorted(each for each in self.inside(path).rglob("*") if each.is_file())

    def name_of(self, path: Path) -> str:
        """How a file is named to the model."""
        return str(path.relative_to(self.root.resolve()))


@tool(replay="safe")
async def list_files(path: str, ctx: ToolContext[Desk]) -> ToolResult:
    """List the files of a folder and of those below it."""
    desk = ctx.deps
    desk.begin("list_files", ctx, path)
    names = [desk.name_of(each) for each in desk.files(path)]
    return desk.end("list_files", ctx, f"{len(names)} files\n" + "\n".join(names))


@tool(replay="safe")
async def read_file(path: str, ctx: ToolContext[Desk]) -> ToolResult:
    """Read a text file."""
    desk = ctx.deps
    desk.begin("read_file", ctx, path)
    return desk.end("read_file", ctx, desk.inside(path).read_text())


@tool(replay="safe")
async def search(text: str, ctx: ToolContext[Desk]) -> ToolResult:
    """Find the lines that hold a text, in all files."""
    desk = ctx.deps
    desk.begin("search", ctx, text)
    files = desk.files()
    found = []
    for number, path in enumerate(files):
        if number == len(files) // 2:
            await desk.half_way("search")
        for line_number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if text in line:
                found.append(f"{desk.name_of(path)}:{line_number}: {line.strip()}")
    return desk.end("search", ctx, f"{len(found)} lines\n" + "\n".join(found))


@tool(replay="idempotent")
async def write_file(path: str, text: str, ctx: ToolContext[Desk]) -> ToolResult:
    """Write a text file, whole or not at all."""
    desk = ctx.deps
    desk.begin("write_file", ctx, path)
    target = desk.inside(path)
    # The key is the same at each start of this call, so a second start writes over what the first left behind.
    mark = hashlib.sha256(ctx.idempotency_key.encode()).hexdigest()[:12]
    draft = target.with_name(f".{target.name}.{mark}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    await desk.half_way("write_file")
    draft.replace(target)
    return desk.end("write_file", ctx, f"wrote {len(text)} characters to {path}")


@tool  # "never" is what a tool is that says nothing
async def delete_file(path: str, ctx: ToolContext[Desk]) -> ToolResult:
    """Delete one file."""
    desk = ctx.deps
    desk.begin("delete_file", ctx, path)
    desk.inside(path).unlink()
    await desk.half_way("delete_file")
    return desk.end("delete_file", ctx, f"deleted {path}")


@tool(replay="never")
async def delete_folder(path: str, ctx: ToolContext[Desk]) -> ToolResult:
    """Delete a folder and everything in it."""
    desk = ctx.deps
    desk.begin("delete_folder", ctx, path)
    files = desk.files(path)
    for number, each in enumerate(files):
        if number == len(files) // 2:
            await ctx.progress(f"deleted {number} of {len(files)} files")
            await desk.half_way("delete_folder")
        each.unlink()
    folder = desk.inside(path)
    for each in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
        each.rmdir()
    folder.rmdir()
    return desk.end("delete_folder", ctx, f"deleted {path} with {len(files)} files")


TOOLS = (list_files, read_file, search, write_file, delete_file, delete_folder)
