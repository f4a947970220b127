"""Paths that a model gives, followed below one folder by its descriptors: no step leads out of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentlane import InvalidDefinition, RetryTool

LINKS_MAX = 40
"""Symbolic links that one path may go through."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(RetryTool):
    """What was asked for is not done; the text tells the model why, and what to do instead."""


class Place(NamedTuple):
    """A name in an open folder; ``name`` is ``.`` for the folder itself. ``shown`` is the path from the root."""

    folder: int
    name: str
    shown: str


class Root:
    """The folder that all paths are in.

    Each step of a path is opened from the descriptor of the folder before it, and is no link there; links are read and
    followed here, step by step, like the rest of the path. ``..`` goes back to the folder that the path came through,
    and nowhere from the root. So what other processes change meanwhile can make a path fail, and never lead out: with
    one exception, a folder that they move out of the root while it is in use.
    """

    def __init__(self, path: str | os.PathLike[str], *, depth: int) -> None:
        self._given = os.path.abspath(path)
        self.path = os.path.realpath(path)
        self._depth = depth
        if not os.path.isdir(self.path):
            raise InvalidDefinition(f"Workspace({os.fspath(path)!r}): there is no such folder")

    @contextmanager
    def place(self, path: str, *, follow: bool = True, make: bool = False) -> Iterator[Place]:
        """The place of a path, while its folder is open.

        With ``follow`` the last step is no link when it is looked at. With ``make`` missing folders before it are made.
        Raises ``Refused`` for a path that leads out, or through something that is no folder, and with what the system
        says if it refuses anything while the place is used.
        """
        folders: list[int] = []
        names: list[str] = []
        todo = self._steps(path, path)[::-1]
        links = 0
        try:
            folders.append(self._opened())
            name = "."
            while todo:
                step = todo.pop()
                if step == "..":
                    self._leave(path, folders, names)
                    continue
                target = _link(folders[-1], step) if todo or follow else None
                if target is not None:
                    links += 1
                    if links > LINKS_MAX:
                        raise Refused(f"{path!r} goes through more than {LINKS_MAX} links")
                    todo += self._steps(target, path)[::-1]
                    if target.startswith("/"):
                        while len(folders) > 1:
                            self._leave(path, folders, names)
                elif not todo:
                    name = step
                else:
                    if len(folders) > self._depth:
                        raise Refused(f"{path!r} is more than {self._depth} folders deep")
                    # What is not there cannot be gone back from: else a path that leads out would make folders first.
                    folders.append(_enter(folders[-1], step, path, make=make and ".." not in todo))
                    names.append(step)
            yield Place(folders[-1], name, "/".join([*names, *([name] if name != "." else [])]) or ".")
        except OSError as error:  # by the model's path: other names, and where the folder is, are not its business
            raise Refused(f"{path!r}: {error.strerror or type(error).__name__}") from error
        finally:
            for folder in folders:
                os.close(folder)

    def _opened(self) -> int:
        try:
            return os.open(self.path, _FOLDER)
        except OSError as error:
            raise Refused(f"the workspace's own folder cannot be opened any more: {error.strerror}") from error

    def _steps(self, path: str, asked: str) -> list[str]:
        if "\0" in path:
            raise Refused("a path has no zero byte in it")
        if path.startswith("/"):
            for start in {self.path, self._given}:
                if path == start or path.startswith(start.rstrip("/") + "/"):
                    path = path[len(start) :]
                    break
            else:
                raise _outside(asked)
        return [step for step in path.split("/") if step not in ("", ".")]

    def _leave(self, path: str, folders: list[int], names: list[str]) -> None:
        if len(folders) == 1:
            raise _outside(path)
        os.close(folders.pop())
        names.pop()


def _outside(path: str) -> Refused:
    return Refused(f"{path!r} is outside of the workspace; give a path that is in it, relative to its top folder")


def _link(folder: int, name: str) -> str | None:
    """Where a link leads; None for what is no link, and for what is not there."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _enter(folder: int, name: str, path: str, *, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            pass
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Refused(f"{path!r}: {name!r} is no folder") from error
        if error.errno == errno.ENOENT:
            raise Refused(f"{path!r}: there is no folder {name!r}") from error
        raise
