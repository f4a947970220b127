"""The recorded session as a plan: what to accept, answer, abort and append, and what each call returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from agentlane.data.messages import AssistantMessage, Message, ToolCallPart, ToolResultMessage, UserMessage

Ending: TypeAlias = Literal["completed", "aborted", "failed", "terminated"]
"""How a run ends: by an answer without calls, where the test aborts, by a failed answer, by its tools' wish."""


class CallPlace(NamedTuple):
    """A call by its place: user message (from 1), kept answer to it (from 0), call in that answer (from 0)."""

    turn: int
    answer: int
    call: int


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One answer, and one result for each of its calls; none when its calls never ran."""

    message: AssistantMessage
    results: tuple[ToolResultMessage, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A prompt to accept and drive, and what comes of it."""

    turn: int
    prompt: UserMessage
    answers: tuple[Answered, ...]
    ending: Ending


@dataclass(frozen=True, kw_only=True)
class Append:
    """An answer without a prompt before it: the test appends it."""

    message: AssistantMessage


Step: TypeAlias = Run | Append


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps in order, and what is asked while they run."""

    conversation: tuple[Message, ...]
    steps: tuple[Step, ...]
    calls: Mapping[CallPlace, ToolCallPart]
    """The calls that have a result."""
    results: Mapping[CallPlace, ToolResultMessage]
    places: Mapping[str, CallPlace]
    """Of each call with a result, by the provider's id."""
    terminating: frozenset[CallPlace]
    """The calls whose tools say ``terminate``: all of a batch, or none."""

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(step for step in self.steps if isinstance(step, Run))


def plan_of(conversation: Sequence[Message]) -> Plan:
    """The plan that plays ``conversation`` back; raises ``ValueError`` where a recording cannot be played."""
    steps: list[Step] = []
    for turn, (prompt, rest) in enumerate(_turns(conversation), start=1):
        answers = _answers(turn, rest)
        asked = next((n for n, each in enumerate(answers, start=1) if not each.message.calls), len(answers))
        asked = next((n for n, each in enumerate(answers[:asked], start=1) if _ends(each.message)), asked)
        steps.append(Run(turn=turn, prompt=prompt, answers=answers[:asked], ending=_ending(turn, answers[:asked])))
        for each in answers[asked:]:
            if each.message.calls or _ends(each.message):
                raise ValueError(f"turn {turn}: an answer behind the last one that calls, failed or was aborted")
            steps.append(Append(message=each.message))
    calls: dict[CallPlace, ToolCallPart] = {}
    results: dict[CallPlace, ToolResultMessage] = {}
    for run in steps:
        if isinstance(run, Run):
            for answer, each in enumerate(run.answers):
                for index, result in enumerate(each.results):
                    place = CallPlace(run.turn, answer, index)
                    calls[place], results[place] = each.message.calls[index], result
    places = {result.call_id: place for place, result in results.items()}
    if len(places) != len(results):
        raise ValueError("two calls have one id")
    last_batches = {(run.turn, len(run.answers) - 1) for run in steps if isinstance(run, Run) and _terminated(run)}
    return Plan(
        conversation=tuple(conversation),
        steps=tuple(steps),
        calls=calls,
        results=results,
        places=places,
        terminating=frozenset(place for place in results if place[:2] in last_batches),
    )


def batch_place(messages: Iterable[Message]) -> tuple[int, int]:
    """Turn and answer of the newest kept answer in ``messages``, failed and aborted ones between being passed over."""
    turn, answers = 0, 0
    for message in messages:
        if isinstance(message, UserMessage):
            turn, answers = turn + 1, 0
        elif isinstance(message, AssistantMessage) and not _ends(message):
            answers += 1
    return turn, answers - 1


def _turns(conversation: Sequence[Message]) -> list[tuple[UserMessage, list[Message]]]:
    turns: list[tuple[UserMessage, list[Message]]] = []
    for message in conversation:
        if isinstance(message, UserMessage):
            turns.append((message, []))
        elif not turns:
            raise ValueError("the recording does not begin with a user message")
        else:
            turns[-1][1].append(message)
    return turns


def _answers(turn: int, messages: Sequence[Message]) -> tuple[Answered, ...]:
    answers: list[Answered] = []
    results: list[ToolResultMessage] = []
    for message in reversed(messages):
        if isinstance(message, ToolResultMessage):
            results.insert(0, message)
        elif isinstance(message, AssistantMessage):
            asked = [] if _ends(message) else [(call.id, call.name) for call in message.calls]
            if asked != [(result.call_id, result.name) for result in results]:
                raise ValueError(f"turn {turn}: the results are not those of the calls, in their order")
            answers.insert(0, Answered(message=message, results=tuple(results)))
            results = []
    if results:
        raise ValueError(f"turn {turn}: results without an answer")
    return tuple(answers)


def _ends(message: AssistantMessage) -> bool:
    return message.stop_reason in ("error", "aborted")


def _ending(turn: int, answers: Sequence[Answered]) -> Ending:
    if not answers:
        raise ValueError(f"turn {turn}: a prompt without an answer")
    match answers[-1].message.stop_reason:
        case "aborted":
            return "aborted"
        case "error":
            return "failed"
        case _:
            return "terminated" if answers[-1].message.calls else "completed"


def _terminated(run: Run) -> bool:
    return run.ending == "terminated"
