"""Steps of a host that has conversations summarized, what a program's agents know of it, and how both are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from agentlane import AssistantMessage, CompactionPolicy, Message, ToolResultMessage, UserMessage
from agentlane.machine.summaries import BRANCH_HEADER, SUMMARY_HEADER

UNIT = 100_000
"""What a message of a user, or a result, counts in tokens; more than the instructions and tools of any request."""


@dataclass(frozen=True)
class Compact:
    """``keep``: in units; None: what the agent says. Not ``driven``: only accepted."""

    lane: int = 0
    keep: int | None = None
    handle: int = 0
    driven: bool = True


@dataclass(frozen=True)
class Leave:
    """Navigate with a summary of what is left behind. ``to`` None: before the first entry."""

    lane: int = 0
    to: int | None = None
    label: str | None = None
    handle: int = 0
    driven: bool = True


@dataclass(frozen=True)
class Summing:
    """The policy of a program's agents: a window (None: nobody tells) and what is kept, in units.

    ``projects``: what applications put into a conversation is shown. ``none``: nothing is summarized by itself.
    """

    window: int | None = None
    keep: int = 4
    projects: bool = False
    none: bool = False

    @property
    def threshold(self) -> int | None:
        """In tokens. What a request costs besides its messages makes no difference to it."""
        return None if self.window is None or self.none else self.window * UNIT + UNIT - 1

    @property
    def policy_keep(self) -> int:
        """In tokens; the usual number where nothing is summarized by itself."""
        return CompactionPolicy().keep_tokens if self.none else self.keep * UNIT

    @property
    def policy(self) -> CompactionPolicy | None:
        if self.none:
            return None
        return CompactionPolicy(context_tokens=self.threshold, reserve_tokens=0, keep_tokens=self.keep * UNIT)


def counted(message: Message) -> int:
    """How many tokens a message has: an exact counter."""
    match message:
        case AssistantMessage():
            return size_of(("assistant", "", message.calls))
        case UserMessage():
            return size_of(("user",))
        case ToolResultMessage():
            return size_of(("result",))


def size_of(shape: tuple[Any, ...]) -> int:
    """The same for a message in the plain model's words: an answer counts for itself and for each of its calls."""
    return UNIT * (1 + len(shape[2])) if shape[0] == "assistant" else UNIT


def projected(data: Any) -> str:
    """What an entry of an application's own is shown as."""
    return f"note {data}"


def in_words(text: str) -> str:
    """The text of a message of a user: of one that shows a summary, which."""
    found = re.fullmatch(r"(.*)\n\n<summary>\n(.*)\n</summary>", text, re.DOTALL)
    kinds = {SUMMARY_HEADER: "before:", BRANCH_HEADER: "elsewhere:"}
    return f"{kinds[found[1]]} {found[2]}" if found is not None and found[1] in kinds else text


_PASSAGE = re.compile(r"<(said|called|returned)([^>]*)>\n(.*?)\n</\1>|<(unfinished-turn)>", re.DOTALL)


def asked_about(text: str, result_text: Any) -> tuple[Any, ...]:
    """What a request for a summary is about: the summary before it, and what was said and done."""
    earlier = re.match(r"<earlier-summary>\n(.*?)\n</earlier-summary>", text, re.DOTALL)
    passages: list[tuple[Any, ...]] = []
    for tag, told, inner, turn in _PASSAGE.findall(text):
        if turn:
            passages.append(("turn",))
        elif tag == "said" and "user" in told:
            passages.append(("user", in_words(inner.replace("&lt;", "<"))))
        elif tag == "said":
            passages.append(("said", inner))
        else:
            name = re.search(r'tool="(\w+)"', told)
            assert name is not None, told
            failed = "failed" in told
            passages.append(("called", name[1]) if tag == "called" else ("result", name[1], result_text(inner), failed))
    return (None if earlier is None else earlier[1], passages)


def written(messages: list[tuple[Any, ...]], turn: int | None) -> list[tuple[Any, ...]]:
    """The same of messages in the plain model's words."""
    passages: list[tuple[Any, ...]] = []
    for index, shape in enumerate(messages):
        passages += [("turn",)] if index == turn else []
        if shape[0] == "assistant":
            passages += [("said", shape[1])] if shape[1] else []
            passages += [("called", tool) for tool in shape[2]]
        else:
            passages.append(shape)
    return passages + ([("turn",)] if turn == len(messages) else [])


_handle = st.sampled_from([0, 0, 1])
_keep = st.sampled_from([None, 0, 0, 1, 2, 4])


def compacts(on: int) -> st.SearchStrategy[Compact]:
    return st.builds(Compact, st.just(on), _keep, _handle, st.sampled_from([True, True, False]))


def leaves(on: int) -> st.SearchStrategy[Leave]:
    to = st.one_of(st.none(), st.integers(0, 6), st.integers(0, 30))
    driven = st.sampled_from([True, True, False])
    return st.builds(Leave, st.just(on), to, st.sampled_from([None, None, "left"]), _handle, driven)


summings: st.SearchStrategy[Summing] = st.builds(
    Summing, st.sampled_from([None, 3, 4, 6, 8]), st.sampled_from([0, 1, 2, 4]), st.booleans(), st.just(False)
) | st.builds(Summing, none=st.just(True), projects=st.booleans())
