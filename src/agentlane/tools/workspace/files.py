"""Files of a workspace: read whole within a limit, and replaced in one step, never in part."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from agentlane.tools.workspace.paths import Place, Refused

TEMPORARY_PREFIX = ".agentlane-"
"""What a file is called until it is whole. One that a death leaves behind is cleared by the replay of its call."""


def regular(place: Place) -> os.stat_result:
    """What is known of a regular file; ``Refused`` for anything else, which reading might block on or change."""
    try:
        found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError as error:
        raise Refused(f"{place.shown!r}: there is no such file") from error
    if stat.S_ISDIR(found.st_mode):
        raise Refused(f"{place.shown!r} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{place.shown!r} is no regular file")
    return found


def read_whole(place: Place, size_max: int) -> tuple[bytes, os.stat_result]:
    """A regular file's bytes, and what is known of it; ``Refused`` if there are more than ``size_max``."""
    regular(place)
    file = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{place.shown!r} is no regular file")
        data = bytearray()
        while found.st_size <= size_max and len(data) <= size_max:
            chunk = os.read(file, min(1 << 20, size_max + 1 - len(data)))
            if not chunk:
                return bytes(data), found
            data += chunk
        raise Refused(f"{place.shown!r} has {max(found.st_size, len(data))} bytes, and {size_max} can be read")
    finally:
        os.close(file)


def version_of(place: Place) -> str:
    """Which file it was, how long, and when it was last written; empty if there is none."""
    try:
        found = regular(place)
    except Refused:
        if exists(place):
            raise
        return ""
    return version(found)


def version(found: os.stat_result) -> str:
    """The same of what is known of a file."""
    return f"{found.st_dev}.{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"


def exists(place: Place) -> bool:
    """Whether there is anything of that name."""
    try:
        os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def clear(place: Place, temporary: str) -> None:
    """Take away what a start of this call that died has left beside its place."""
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=place.folder)


def replace_whole(place: Place, data: bytes, *, temporary: str) -> None:
    """Put a whole file in a place, under another name first: whoever opens it gets the old one or the new one.

    On return it survives a loss of power. It has the permissions of the old one; it is another file, so that other
    names of the old one (hard links) keep what they had. ``Refused`` for one that this process may not write.
    """
    mode = _mode_of_old(place)
    clear(place, temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=place.folder)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            if mode is not None:
                os.fchmod(file, mode)
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=place.folder)
        raise
    os.fsync(place.folder)


def _mode_of_old(place: Place) -> int | None:
    """The permissions of the file that is to be replaced; None if there is none yet."""
    try:
        mode = stat.S_IMODE(regular(place).st_mode) & 0o777
    except Refused:
        if exists(place):
            raise
        return None
    if not mode & 0o222 or not os.access(place.name, os.W_OK, dir_fd=place.folder):  # a rename would not ask
        raise Refused(f"{place.shown!r} is read-only and stays as it is")
    return mode
