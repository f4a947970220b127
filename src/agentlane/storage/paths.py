"""Paths at which nothing can be kept: what the operating system says of them, as ``InvalidName`` with the way out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from agentlane.errors import InvalidName

SUFFIX = ".jsonl"
"""The end of the name of a session's own file."""

_ANYWHERE = {
    errno.ENAMETOOLONG: "is too long, with what is added to it for files beside it; take a shorter name",
    errno.ELOOP: "leads through symbolic links that lead in a circle; name the place itself",
    errno.ENOTDIR: "lies below something that is no folder; name a place in a folder",
}
_TO_MAKE = {
    errno.EEXIST: "lies below something that is no folder; name a place in a folder",
    errno.ENOENT: "is where no file can be made; name a place in an ordinary folder",
}


@contextmanager
def usable(path: str | os.PathLike[str], *, make: bool = False) -> Iterator[None]:
    """Inside, an ``OSError`` that means that ``path`` cannot be a place of ours becomes ``InvalidName``.

    ``make``: something is made there, so that it may also be a place where nothing can be. Other errors (of rights, of
    the disk) are what they are.
    """
    try:
        yield
    except OSError as error:
        why = _ANYWHERE.get(error.errno or 0) or (_TO_MAKE.get(error.errno or 0) if make else None)
        if why is None:
            raise
        raise InvalidName(f"{short(path)} {why} ({error.strerror})", value=str(path)) from error


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether something is at ``path``, links not followed; ``InvalidName`` where nothing can be."""
    with usable(path):
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
    return True


def short(path: str | os.PathLike[str]) -> str:
    """A path as text, the middle left out where it is long."""
    text = os.fspath(path)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-90:]} ({len(text)} characters)"
