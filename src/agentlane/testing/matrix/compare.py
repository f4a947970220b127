"""Two histories of one scenario against each other: without stops, and with one stop less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from agentlane.data.messages import AssistantMessage
from agentlane.testing.matrix.family import CHILD
from agentlane.testing.matrix.story import Chapter, Step, chapters, plain, summaries

ENDED_SHORT = ("restarts_exhausted", "model_unavailable", "limit_reached")
"""Codes with which an operation ends sooner where more was interrupted."""

Stories = Mapping[str, Sequence[Step]]


def differs_from_reference(
    stories: Stories, reference: Stories, *, hooked: bool = False, summarized: bool = True
) -> Iterator[str]:
    """What a steady model said elsewhere than in the run without stops: as much, or less where an operation ended.

    ``hooked``: answers are shown to hooks, and one that an abort came upon there is settled as the model gave it.
    ``summarized``: nothing that ended short, or was interrupted too often, is a reason for another summary or none.
    """
    for lane in {*stories, *reference}:
        made, meant = summaries(stories.get(lane, ())), summaries(reference.get(lane, ()))
        if summarized and made != meant:
            yield f"lane {lane!r} has the summaries {made!r}, and without stops {meant!r}"
        pairs = zip_longest(chapters(stories.get(lane, ())), chapters(reference.get(lane, ())))
        for number, (got, wanted) in enumerate(pairs, start=1):
            if got is None and lane.startswith(CHILD) and _cut_short(stories):
                continue  # its parent never came to it
            if got is None or wanted is None:
                which = "only with" if wanted is None else "only without"
                yield f"operation {number} of lane {lane!r} is there {which} the stops"
                continue
            if got.inputs != wanted.inputs:
                yield f"operation {number} of lane {lane!r} has the input {got.inputs!r}, not {wanted.inputs!r}"
            said, expected = _answers(got), _answers(wanted)
            if hooked and got.result.status == "aborted":
                said = said[:-1]
            short = got.result.status == "aborted" or got.result.code in ENDED_SHORT
            if said != (expected[: len(said)] if short else expected):
                yield f"operation {number} of lane {lane!r} has the answers {said!r}, and without stops {expected!r}"


def differs_from_one_recovery(once: Stories, twice: Stories, excused: set[str]) -> Iterator[str]:
    """What a second stop changed: nothing but the results of calls that it interrupted (``excused``)."""
    for lane in {*once, *twice}:
        for one, two in zip_longest(chapters(once.get(lane, ())), chapters(twice.get(lane, ()))):
            if (one is None or two is None) and lane.startswith(CHILD) and (_cut_short(once) or _cut_short(twice)):
                continue
            if one is None or two is None:
                yield f"lane {lane!r} has another number of operations when its recovery is stopped"
                continue
            id = one.result.operation_id
            if "aborted" in (one.result.status, two.result.status):
                continue  # how far an operation came before its abort is for the stop to say
            if (one.result.status, one.result.code) != (two.result.status, two.result.code):
                if two.result.code not in ("restarts_exhausted", "limit_reached"):
                    yield f"operation {id} is {one.result.status}, and {two.result.status} when its recovery is stopped"
                continue
            for first, second in zip_longest(one.turns, two.turns):
                if first is None or second is None or plain(first.answer) != plain(second.answer):
                    yield f"operation {id} goes on with {second!r} when its recovery is stopped, and else {first!r}"
                    break
                for (call, result), (other, again) in zip(first.results, second.results, strict=False):
                    if result != again and call not in excused and other not in excused:
                        gives = f"{again.text!r} when its recovery is stopped, and else {result.text!r}"
                        yield f"call {other} of operation {id} gives {gives}"


def _cut_short(stories: Stories) -> bool:
    """Whether some operation ended before its time."""
    return any(each.result.status != "completed" for story in stories.values() for each in chapters(story))


def _answers(chapter: Chapter) -> list[object]:
    return [_said(turn.answer) for turn in chapter.turns]


def _said(answer: AssistantMessage) -> object:
    return answer.content, answer.stop_reason
