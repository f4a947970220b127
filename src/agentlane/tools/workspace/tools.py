"""The workspace: a folder, its limits, and the tools that work in it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from agentlane import ImagePart, InvalidDefinition, Tool, ToolContext, ToolResult, tool_method, tools_of
from agentlane.tools.workspace.commands import Command
from agentlane.tools.workspace.files import (
    TEMPORARY_PREFIX,
    clear,
    exists,
    read_whole,
    regular,
    replace_whole,
    version,
    version_of,
)
from agentlane.tools.workspace.limits import WorkspaceLimits
from agentlane.tools.workspace.looking import Looking
from agentlane.tools.workspace.output import Output
from agentlane.tools.workspace.paths import Place, Refused, Root
from agentlane.tools.workspace.texts import edited, numbered, text_of

SKIPPED = (".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules")
PASSED_ON = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
PROGRESS_LINES = 20


class Workspace:
    """A folder that an agent may read, change and run commands in. ``tools()`` gives its tools.

    - ``limits``: how much is read, shown, kept and waited for
    - ``skip``: names of folders that are listed and not gone into
    - ``environment``: what commands see beside a few ordinary variables (``PATH``, ``HOME`` and the like); nothing
      else of the process's own environment is passed on, for it may hold keys
    - ``shell``: what runs a command, given ``-c`` and its text

    ``list_files``, ``read_file`` and ``search_files`` change nothing (``safe``). ``write_file`` is ``idempotent``: its
    replay writes only what the file was when the call began, and leaves a file alone that somebody changed since.
    ``edit_file``, ``delete_file`` and ``run_command`` are ``never`` repeated. Those four run alone, in the order in
    which the model asked.

    All paths but those in commands stay in the folder, whatever links it holds and whoever changes it meanwhile; a
    command may do what the process may. How-to page "Work on a folder" says what is not promised.

    Raises ``InvalidDefinition`` if there is no such folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        limits: WorkspaceLimits | None = None,
        skip: Collection[str] = SKIPPED,
        environment: Mapping[str, str] | None = None,
        shell: str = "/bin/sh",
    ) -> None:
        self.limits = WorkspaceLimits() if limits is None else limits
        self._root = Root(folder, depth=self.limits.depth)
        self._skip = frozenset(skip)
        ordinary = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._environment = {**ordinary, "TERM": "dumb", **(environment or {})}
        self._shell = shell
        self._changing = threading.Lock()  # two lanes may work on one folder

    def __repr__(self) -> str:
        return f"Workspace({self.folder!r})"

    @property
    def folder(self) -> str:
        """The folder's own path, links followed."""
        return self._root.path

    def tools(
        self, only: Collection[str] | None = None, *, approval: Collection[str] = ()
    ) -> tuple[Tool[..., Any], ...]:
        """The tools, or those that are named; a person is asked before each call of those in ``approval``."""
        made = {each.name: each for each in tools_of(self)}
        for what, names in (("only", only or ()), ("approval", approval)):
            if isinstance(names, str) or set(names) - set(made):
                raise InvalidDefinition(
                    f"Workspace.tools: {what}={names!r}: a list of some of these names is needed: {', '.join(made)}"
                )
        for name, each in made.items():
            if name == "read_file":
                room = self.limits.image_bytes * 4 // 3 + self.limits.read_bytes + 1_024
                each.options = replace(each.options, max_result_bytes=max(room, 4 * self.limits.read_bytes))
            if name in approval:
                each.options = replace(each.options, approval=True)
        return tuple(each for name, each in made.items() if only is None or name in only)

    @tool_method(replay="safe")
    def list_files(self, ctx: ToolContext, path: str = ".", pattern: str = "*", depth: int = 1) -> str:
        """List the files and folders in a folder of the workspace, with sizes. Links are shown and not followed.

        Args:
            path: the folder
            pattern: which names to list, with *, ? and [...] as in a shell; with a / in it, which paths
            depth: 1 for the folder alone, more for folders in it too
        """
        return self._looking(ctx).listed(path, pattern, depth)

    @tool_method(replay="safe")
    def read_file(self, path: str, start_line: int = 1, max_lines: int | None = None) -> str | ToolResult:
        """Read a file of the workspace: a text with line numbers, each followed by a tab, or an image.

        Args:
            path: the file
            start_line: the first line to show
            max_lines: how many lines to show at most
        """
        limits = self.limits
        if start_line < 1 or (max_lines is not None and max_lines < 1):
            raise Refused("start_line and max_lines are 1 or more")
        with self._root.place(path) as place:
            data, _ = read_whole(place, limits.file_bytes)
        text = text_of(data)
        if text is not None:
            return numbered(
                text.text,
                start_line,
                lines_max=min(max_lines or limits.read_lines, limits.read_lines),
                chars_max=limits.line_chars,
                bytes_max=limits.read_bytes,
            )
        image = ImagePart.of(data) if len(data) <= limits.image_bytes else None
        if image is None:
            raise Refused(f"{path!r} is a binary file of {len(data)} bytes and cannot be shown")
        return ToolResult(content=[image])

    @tool_method(replay="safe")
    def search_files(
        self, ctx: ToolContext, text: str, path: str = ".", pattern: str = "*", ignore_case: bool = False
    ) -> str:
        """Find a text in the files of the workspace: each line that holds it, as path:line: text.

        Args:
            text: what to look for, exactly, within one line; not a regular expression
            path: the folder to look in
            pattern: which files to look in, with *, ? and [...] as in a shell
            ignore_case: whether capitals and small letters are the same
        """
        return self._looking(ctx).searched(text, path, pattern, ignore_case=ignore_case)

    @tool_method(replay="idempotent", parallel=False)
    async def write_file(self, path: str, content: str, ctx: ToolContext) -> str:
        """Write a whole text file, new or in place of an old one. Missing folders are made.

        Args:
            path: the file
            content: all that the file will hold
        """
        data = self._bounded(content.encode("utf-8", "replace"))
        before: str | None = await ctx.memo("before")
        if before is None:
            before = await asyncio.to_thread(self._version, path)
            await ctx.set_memo("before", before)  # from here on a replay can tell our write from another's
        return await asyncio.to_thread(self._write, path, data, before, _temporary(ctx))

    @tool_method(replay="never", parallel=False)
    def edit_file(self, ctx: ToolContext, path: str, old_text: str, new_text: str, replace_all: bool = False) -> str:
        """Replace a piece of a text file. The piece must be in the file exactly once.

        Args:
            path: the file
            old_text: the piece as it is in the file, without line numbers
            new_text: what to put in its place
            replace_all: whether to replace it wherever it is
        """
        with self._changing, self._root.place(path) as place:
            data, found = read_whole(place, self.limits.file_bytes)
            text = text_of(data)
            if text is None:
                raise Refused(f"{path!r} is a binary file; edit_file changes texts")
            made = edited(text.text, old_text, new_text, every=replace_all, size_max=self.limits.file_bytes)
            self._put(place, self._bounded(text.encode(made.text)), version(found), _temporary(ctx))
        times = "once" if made.times == 1 else f"{made.times} times"
        return f"replaced {times}, first on line {made.line} of {place.shown}"

    @tool_method(replay="never", parallel=False)
    def delete_file(self, path: str, recursive: bool = False) -> str:
        """Delete a file, a link (not what it leads to), or a folder.

        Args:
            path: what to delete
            recursive: whether a folder may be deleted with all that is in it
        """
        with self._changing, self._root.place(path, follow=False) as place:
            if place.name == ".":
                raise Refused(f"{path!r}: give the path of what to delete by its name; the workspace itself stays")
            if not exists(place):
                raise Refused(f"{place.shown!r}: there is no such file")
            mode = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                os.unlink(place.name, dir_fd=place.folder)
            elif recursive:
                try:
                    shutil.rmtree(place.name, dir_fd=place.folder)
                except OSError as error:
                    raise Refused(f"{place.shown!r}: {error.strerror}; some of it may be deleted") from error
            else:
                try:
                    os.rmdir(place.name, dir_fd=place.folder)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    raise Refused(f"{place.shown!r} is a folder with something in it; set recursive") from error
            os.fsync(place.folder)
        return f"deleted {place.shown}"

    @tool_method(replay="never", parallel=False)
    async def run_command(self, command: str, ctx: ToolContext, timeout_seconds: float = 120) -> ToolResult:
        """Run a shell command in the top folder of the workspace and wait for its end. It gets no input.

        Output and errors come together; of much output the beginning and the end are shown. What it leaves running in
        the background is killed.

        Args:
            command: what to run
            timeout_seconds: when to stop it
        """
        if not timeout_seconds > 0 or "\0" in command:
            raise Refused("timeout_seconds is more than 0, and a command has no zero byte in it")
        timeout_ms = round(min(timeout_seconds * 1_000, self.limits.command_ms))

        async def tell(output: Output) -> None:
            await ctx.progress(output.latest(PROGRESS_LINES))

        running = Command([self._shell, "-c", command], self.folder, self._environment, self.limits)
        try:
            end = await running.follow(max(1, timeout_ms), tell)
        finally:
            await running.stop()
        said = {
            "exited": f"[exit code {running.exit_code}]",
            "timeout": f"[stopped: it had not ended after {timeout_ms} ms]",
            "too much output": f"[stopped: it wrote more than {self.limits.output_total_bytes} bytes]",
        }[end]
        text = running.output.text()
        return ToolResult(
            content=f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{said}",
            details={"end": end, "exit_code": running.exit_code, "output_bytes": running.output.total},
            is_error=end != "exited",
        )

    def _looking(self, ctx: ToolContext[Any]) -> Looking:
        return Looking(self._root, self.limits, self._skip, lambda: ctx.cancelled)

    def _bounded(self, data: bytes) -> bytes:
        if len(data) > self.limits.file_bytes:
            raise Refused(f"the file would have {len(data)} bytes, and {self.limits.file_bytes} can be written")
        return data

    def _version(self, path: str) -> str:
        with self._root.place(path, make=True) as place:
            if place.name.startswith(TEMPORARY_PREFIX):
                raise Refused(f"{path!r}: names that begin with {TEMPORARY_PREFIX} are not listed; give another one")
            return version_of(place)

    def _write(self, path: str, data: bytes, before: str, temporary: str) -> str:
        with self._changing, self._root.place(path, make=True) as place:
            clear(place, temporary)  # whatever becomes of this start: no later one would
            if version_of(place) != before and _holds(place, data):
                return f"{place.shown} holds the content already"
            self._put(place, data, before, temporary)
        return f"wrote {len(data)} bytes to {place.shown}"

    def _put(self, place: Place, data: bytes, before: str, temporary: str) -> None:
        if version_of(place) != before:
            raise Refused(f"{place.shown!r} was changed by somebody meanwhile and is left as it is; read it again")
        replace_whole(place, data, temporary=temporary)


def _holds(place: Place, data: bytes) -> bool:
    return exists(place) and regular(place).st_size == len(data) and read_whole(place, len(data))[0] == data


def _temporary(ctx: ToolContext[Any]) -> str:
    """The same for every start of a call, so that what a killed one leaves is cleared by its replay."""
    return f"{TEMPORARY_PREFIX}{hashlib.sha256(ctx.idempotency_key.encode()).hexdigest()[:24]}"
