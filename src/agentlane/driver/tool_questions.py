"""What a tool asks people while it runs. Its call ends there, and starts again once it is answered."""

from __future__ import annotations

from typing import Any, NamedTuple

from agentlane.data.border import clean_text
from agentlane.errors import InvalidMessage
from agentlane.names import check_name

QUESTION_CHARACTERS_MAX = 10_000


class Question(NamedTuple):
    """What is asked, and the name under which the tool finds the answer."""

    name: str
    text: str


class Asked(BaseException):
    """Leaves a tool that has asked. No ``Exception``, so that a tool's own handlers let it pass."""


def checked_question(name: str, text: object) -> Question:
    """A question that can be kept; ``InvalidName`` and ``InvalidMessage`` for another."""
    name = check_name(name, "question")
    where = f"question {name!r}"
    if not isinstance(text, str) or not text.strip():
        raise InvalidMessage(f"{where}: text is needed here, not {text!r}", path="question")
    if len(text) > QUESTION_CHARACTERS_MAX:
        raise InvalidMessage(
            f"{where}: {len(text)} characters; at most {QUESTION_CHARACTERS_MAX} are taken", path="question"
        )
    return Question(name, clean_text(text, where))


def has_asked(error: BaseException) -> bool:
    """Whether a tool was left by its question, also out of task groups, and by nothing else."""
    found: list[Any] = [error]
    while found:
        each = found.pop()
        if isinstance(each, BaseExceptionGroup):
            found.extend(each.exceptions)
        elif not isinstance(each, Asked):
            return False
    return True
