"""Looking through a workspace: what is in its folders, and where a text stands in its files. Links are not followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

from agentlane.tools.workspace.files import TEMPORARY_PREFIX, read_whole
from agentlane.tools.workspace.limits import WorkspaceLimits
from agentlane.tools.workspace.paths import Place, Refused, Root
from agentlane.tools.workspace.texts import clipped, text_of

MATCH_CHARS = 300
"""How much of a line that matches is shown."""


class Found(NamedTuple):
    """One entry of a folder, and the folder while it is open."""

    folder: int
    name: str
    path: str
    entry: os.DirEntry[str]


class Enough(Exception):
    """No more is looked at: the text says why."""


class Looking:
    """One walk through a folder and those in it, by descriptors, sorted by name."""

    def __init__(self, root: Root, limits: WorkspaceLimits, skip: Collection[str], stopped: Callable[[], bool]) -> None:
        self._root = root
        self._limits = limits
        self._skip = skip
        self._stopped = stopped
        self._seen = 0
        self._closed = 0

    def listed(self, path: str, pattern: str, depth: int) -> str:
        """The entries of a folder whose names fit, those of folders in it down to ``depth``."""
        rows: list[str] = []

        def visit(found: Found) -> None:
            if fits(found, pattern):
                if len(rows) >= self._limits.entries:
                    raise Enough(f"only the first {len(rows)} are listed; name a folder or a pattern")
                rows.append(_described(found))

        said = self._walk(path, visit, min(depth, self._limits.depth))
        return "\n".join([*(rows or ["[nothing is there]" if pattern == "*" else "[nothing fits]"]), *said])

    def searched(self, text: str, path: str, pattern: str, *, ignore_case: bool) -> str:
        """The lines that hold ``text``, as ``path:line: text``."""
        if not text:
            raise Refused("text is empty: say what to look for")
        if "\n" in text:
            raise Refused("text has a line end in it, and one line is looked at at a time: look for one of its lines")
        wanted = text.casefold() if ignore_case else text
        rows: list[str] = []
        unread = read_bytes = 0

        def visit(found: Found) -> None:
            nonlocal unread, read_bytes
            if not found.entry.is_file(follow_symlinks=False) or not fits(found, pattern):
                return
            try:
                data, _ = read_whole(Place(found.folder, found.name, found.path), self._limits.file_bytes)
            except (Refused, OSError):
                unread += 1
                return
            read_bytes += len(data)
            if read_bytes > self._limits.searched_bytes:
                raise Enough(f"only the first {self._limits.searched_bytes} bytes were searched; look in fewer files")
            content = text_of(data)
            for number, line in enumerate(content.text.split("\n") if content else (), start=1):
                if wanted in (line.casefold() if ignore_case else line):
                    if len(rows) >= self._limits.matches:
                        raise Enough(f"only the first {len(rows)} are shown; look for more, or in fewer files")
                    rows.append(f"{found.path}:{number}: {clipped(line.strip(), MATCH_CHARS)}")

        said = self._walk(path, visit, self._limits.depth)
        if unread:
            said.append(f"[{unread} files were not read: too large, or not allowed]")
        return "\n".join([*(rows or ["[nothing was found]"]), *said])

    def _walk(self, path: str, visit: Callable[[Found], None], depth: int) -> list[str]:
        try:
            with self._root.place(path) as place:
                if place.name != "." and not stat.S_ISDIR(_stat(place).st_mode):
                    raise Refused(f"{place.shown!r} is no folder")
                self._folder(place.folder, place.name, "" if place.shown == "." else place.shown + "/", visit, depth)
        except Enough as enough:
            return [f"[{enough}]", *self._unopened()]
        return self._unopened()

    def _unopened(self) -> list[str]:
        return [f"[{self._closed} folders could not be opened]"] if self._closed else []

    def _folder(self, parent: int, name: str, prefix: str, visit: Callable[[Found], None], depth: int) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(name, flags, dir_fd=parent)
        try:
            with os.scandir(folder) as entries:
                left = self._limits.visited - self._seen
                found = sorted(islice(entries, left + 1), key=lambda entry: entry.name)
            for entry in found:
                if self._stopped():
                    raise Enough("stopped")
                self._seen += 1
                if self._seen > self._limits.visited:
                    raise Enough(f"only {self._limits.visited} files and folders were looked at; name a folder")
                if entry.name.startswith(TEMPORARY_PREFIX):
                    continue
                visit(Found(folder, entry.name, shown(prefix + entry.name), entry))
                if depth > 1 and entry.name not in self._skip and entry.is_dir(follow_symlinks=False):
                    try:
                        self._folder(folder, entry.name, f"{prefix}{entry.name}/", visit, depth - 1)
                    except FileNotFoundError:
                        continue  # gone meanwhile
                    except OSError:
                        self._closed += 1
        finally:
            os.close(folder)


def fits(found: Found, pattern: str) -> bool:
    """Whether an entry fits a pattern: by its path if there is a ``/`` in the pattern, else by its name."""
    return fnmatchcase(found.path if "/" in pattern else found.name, pattern)


def shown(path: str) -> str:
    """A path as text: bytes in names that are no UTF-8 are shown as what they are not."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _described(found: Found) -> str:
    try:
        if found.entry.is_symlink():
            return f"{found.path} -> {shown(os.readlink(found.name, dir_fd=found.folder))}"
        known = found.entry.stat(follow_symlinks=False)
    except OSError:
        return found.path
    if stat.S_ISDIR(known.st_mode):
        return f"{found.path}/"
    return f"{found.path} ({known.st_size} bytes)" if stat.S_ISREG(known.st_mode) else f"{found.path} (no regular file)"


def _stat(place: Place) -> os.stat_result:
    try:
        return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError as error:
        raise Refused(f"{place.shown!r}: there is no such folder") from error
