"""Steps of a script and places in them: which answer a request gets, told from the request as far as it can be.

What a summary stands for counts as if it were shown: the request says how many messages of users and answers that are
(``stands_for``). The summaries that are shown, of a conversation's beginning and of paths that were left, are messages
of users in their form alone and count as none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from agentlane.data.entries import StandsFor
from agentlane.data.messages import (
    AssistantMessage,
    Message,
    ModelIdentity,
    TextPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.machine.summaries import BRANCH_HEADER, is_shown_summary
from agentlane.model import ModelRequest
from agentlane.testing.script import Answer

USUAL_ATTEMPTS = 3
"""How often the library asks by default before a turn has failed."""


class Step(Struct, frozen=True):
    """The answers between two that are kept: those that go wrong, in order, and the kept one if there is one.

    ``start`` is the number of answers before them in the whole script.
    """

    start: int
    answers: tuple[Answer, ...]


class Place(Struct, frozen=True):
    """Where a request stands: how many user messages count, and how many kept answers are behind it."""

    turn: int
    answers: int


def steps(answers: Iterable[Answer], *, start: int = 0) -> tuple[Step, ...]:
    """The answers of a script (of a turn of it), cut behind each one that is kept."""
    found: list[Step] = []
    waiting: list[Answer] = []
    for each in answers:
        waiting.append(each)
        if each.kept:
            found.append(Step(start, tuple(waiting)))
            start += len(waiting)
            waiting = []
    if waiting:
        found.append(Step(start, tuple(waiting)))
    return tuple(found)


def place_in_script(messages: Sequence[Message], identity: ModelIdentity, stands_for: StandsFor | None = None) -> Place:
    """The place in a script of one piece: only the model's own answers count, in the whole conversation."""
    own = sum(isinstance(message, AssistantMessage) and message.model == identity for message in messages)
    return Place(turn=1, answers=own + _count((stands_for or StandsFor()).answers, identity))


def place_in_turns(
    messages: Sequence[Message], identity: ModelIdentity | None, stands_for: StandsFor | None = None
) -> Place:
    """The place in a script by turns: user messages so far, and answers (of ``identity``, if given) since the last."""
    before = stands_for or StandsFor()
    users = sum(map(_is_of_a_user, messages))
    answers = 0
    for message in reversed(messages):
        if _is_of_a_user(message):
            break
        answers += isinstance(message, AssistantMessage) and identity in (None, message.model)
    if not users:
        answers += _count(before.answers_since, identity)
    return Place(turn=before.users + users, answers=answers)


def _count(answers: Mapping[str, int], identity: ModelIdentity | None) -> int:
    return sum(answers.values()) if identity is None else answers.get(str(identity), 0)


def _is_of_a_user(message: Message) -> bool:
    """Whether a user said it: a summary is shown as one's message too."""
    if not isinstance(message, UserMessage) or is_shown_summary(message):
        return False
    return not any(isinstance(part, TextPart) and part.text.startswith(BRANCH_HEADER) for part in message.content[:1])


def given_before(messages: Sequence[Message], step: Step) -> int:
    """How many answers of ``step`` earlier operations were given, guessed from what stands behind the last answer.

    Each user message, and the results of a batch, may have been asked about before the next one came. One that was
    left no answer in the conversation, so it got answers that go wrong: up to one after which the library does not ask
    again, or up to the usual number of attempts. If that would lead to the kept answer, it was not asked about.
    """
    given = 0
    for _ in range(_inputs(messages) - 1):
        given = _after_one_more(step, given)
    return given


def _inputs(messages: Sequence[Message]) -> int:
    users, results = 0, 0
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolResultMessage):
            results = 1
        elif _is_of_a_user(message):
            users += 1
    return users + results


def _after_one_more(step: Step, given: int) -> int:
    for count, each in enumerate(step.answers[given : given + USUAL_ATTEMPTS], start=1):
        if each.kept:
            return given
        if not each.asked_again:
            return given + count
    return given + min(USUAL_ATTEMPTS, len(step.answers) - given)


class Last(Struct, frozen=True):
    """What was asked last in one conversation, and the number of answers of its step given before that turn."""

    place: Place
    operation_id: str
    attempt: int
    before: int
    index: int


def index_in_step(step: Step, place: Place, request: ModelRequest, last: Last | None, guessed: int) -> Last:
    """Which answer of ``step`` the request gets, with what is to be remembered of it.

    The attempt counts on from the answers that earlier turns at this place were given, to the last of the step, which
    is given as often as it is asked for.
    """
    before = guessed
    if last is not None and last.place == place:
        before = last.before
        if last.operation_id != request.operation_id or request.attempt <= last.attempt:
            before = last.index + 1
    elif last is not None and last.place == Place(turn=place.turn, answers=place.answers - 1):
        before = 0  # the answer before was given here, so nothing of this step was
    index = min(before + max(request.attempt, 1) - 1, len(step.answers) - 1)
    return Last(place, request.operation_id, request.attempt, before, index)
