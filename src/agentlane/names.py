"""The one pattern that names and caller-given ids follow, and the check for it."""

from __future__ import annotations

import re

from agentlane.errors import InvalidName

NAME_LENGTH_MAX = 128

_NAME = re.compile(r"[A-Za-z0-9._:\-/@]{1,128}", re.ASCII)


def check_name(value: str, what: str) -> str:
    """``value`` if it may name a ``what`` (lane, tool, operation id ...), as plain ``str`` whatever subclass it is of.

    Raises ``InvalidName`` otherwise.
    """
    if _is_text(value) and _NAME.fullmatch(value):
        return str.__str__(value)  # a member of a StrEnum, say, would be refused where it is encoded
    raise InvalidName(
        f"{what} {value!r}: use 1 to {NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ : - / @", value=repr(value)
    )


def check_session_id(value: str) -> str:
    """``value`` as plain ``str`` if it may be a session's id (a name without ``/``, ``:`` or a leading dot)."""
    value = check_name(value, "session id")
    if "/" in value or ":" in value or value.startswith("."):
        raise InvalidName(f"session id {value!r}: must not hold '/' or ':' nor begin with '.'", value=value)
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str)
