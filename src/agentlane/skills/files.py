"""Files below a folder, read without ever leaving it: symbolic links are not followed, and sizes are bounded."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

DEPTH_MAX = 8
"""How many folders deep files are listed."""
LOOKED_AT_MAX = 10_000
"""How many names are looked at in all to list files."""

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NOT_FOLLOWED = getattr(os, "O_NOFOLLOW", 0)


class Unreadable(Exception):
    """What was to be read is not there, or may not be read; the text says what and why, from the folder on."""


class Unreachable(Unreadable):
    """The folder that the application named is not there, or may not be read; the text is for the application alone."""


class Folder:
    """A folder, and the way to it from one that the application named.

    The application's own may be reached by links; below it none is followed, when it is read first and ever after: each
    step is opened from the folder before it, so that nobody can put a link in its way in between.
    """

    def __init__(self, root: str, below: Sequence[str] = ()) -> None:
        self.root = os.path.abspath(root)
        self._below = tuple(below)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.root, (*self._below, name))

    @property
    def path(self) -> str:
        """Where it is, for messages to whoever put it there."""
        return os.path.join(self.root, *self._below)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return os.path.basename(self.path)

    def names(self) -> list[tuple[str, bool]]:
        """What is in it, in the order of names, and whether that is a folder. A link is none; ``Unreadable``."""
        with self._opened() as at, os.scandir(at) as found:
            return sorted((each.name, each.is_dir(follow_symlinks=False)) for each in found)

    def has(self, name: str) -> bool:
        """Whether there is anything of that name, a link included."""
        with self._opened() as at:
            try:
                os.stat(name, dir_fd=at, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True

    def is_link(self, name: str) -> bool:
        """Whether that name is a symbolic link."""
        with self._opened() as at:
            return _is_link(name, at)

    def read(self, path: str, size_bytes_max: int) -> bytes:
        """The content of a file below it; ``path`` has its parts joined by ``/``. ``Unreadable``."""
        *folders, name = _parts(path)
        with self._opened(folders) as at:
            try:
                file = os.open(name, os.O_RDONLY | _NOT_FOLLOWED | os.O_NONBLOCK, dir_fd=at)  # a pipe must not block
            except OSError as error:
                raise _unreadable(path, name, at, error) from error
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise Unreadable(f"{path} is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no ordinary file'}")
            if found.st_size > size_bytes_max:
                raise Unreadable(f"{path} has {found.st_size} bytes; at most {size_bytes_max} are read")
            return _content(file, path, size_bytes_max)
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
        finally:
            os.close(file)

    def files(self, at_most: int) -> list[str]:
        """The paths of the first ordinary files below it, in order; hidden ones are left out."""
        found: list[str] = []
        looked_at, waiting = 0, deque([""])
        while waiting:
            place = waiting.popleft()
            with self._opened(place.split("/") if place else []) as at, os.scandir(at) as names:
                for each in sorted(names, key=lambda each: each.name):
                    looked_at += 1
                    if looked_at > LOOKED_AT_MAX:
                        return sorted(found)[:at_most]
                    path = f"{place}/{each.name}" if place else each.name
                    if each.name.startswith("."):
                        continue
                    if each.is_file(follow_symlinks=False):
                        found.append(path)
                    elif each.is_dir(follow_symlinks=False) and path.count("/") < DEPTH_MAX:
                        waiting.append(path)
        return sorted(found)[:at_most]

    @contextmanager
    def _opened(self, further: Sequence[str] = ()) -> Iterator[int]:
        steps = (*self._below, *further)
        try:
            at = os.open(self.root, _FOLDER)
        except OSError as error:
            raise Unreachable(f"{self.root} cannot be read: {error.strerror}") from error
        try:
            for number, step in enumerate(steps):
                try:
                    next_at = os.open(step, _FOLDER | _NOT_FOLLOWED, dir_fd=at)
                except OSError as error:
                    first = len(self._below) if number >= len(self._below) else 0
                    raise _unreadable("/".join(steps[first : number + 1]), step, at, error) from error
                os.close(at)
                at = next_at
            yield at
        finally:
            os.close(at)


def _parts(path: str) -> list[str]:
    if path.startswith("/") or "\0" in path:
        raise Unreadable(f"{path!r} is no path from the folder on")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise Unreadable(f"{path!r} is no path of a file below the folder")
    if any(part.startswith(".") for part in parts):  # what version control keeps there may hold secrets
        raise Unreadable(f"{path!r} is hidden; hidden files are not read")
    return parts


def _unreadable(path: str, name: str, at: int, error: OSError) -> Unreadable:
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, at):
        return Unreadable(f"{path} is a symbolic link; links are not followed")
    if error.errno == errno.ENOENT:
        return Unreadable(f"{path} is not there")
    return Unreadable(f"{path} cannot be read: {error.strerror}")


def _is_link(name: str, at: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _content(file: int, path: str, size_bytes_max: int) -> bytes:
    """All of it, which may have grown since its size was looked at."""
    content = bytearray()
    while piece := os.read(file, size_bytes_max + 1 - len(content)):
        content += piece
        if len(content) > size_bytes_max:
            raise Unreadable(f"{path} has more than {size_bytes_max} bytes; at most that are read")
    return bytes(content)
