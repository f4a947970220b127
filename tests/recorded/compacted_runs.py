"""What a playback with a small window has to have asked, and to have summarized: told from its entries alone."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from agentlane.data.entries import Compaction, Entry, StandsFor
from agentlane.data.messages import AssistantMessage, Message, TextPart, ToolResultMessage, UserMessage
from agentlane.data.tokens import estimate_message, estimate_request, estimate_text
from agentlane.machine.summaries import shown_summary
from agentlane.model import ModelRequest
from agentlane.testing.recorded import RecordedModel
from tests.recorded.compacted import Shown, counted, cut_of, is_summary, shown, standing_for, summary, unanswered
from tests.recorded.witness import Attempt, attempt_of


class Window(NamedTuple):
    """What a window comes to under the usual policy, in tokens; see ``CompactionPolicy``."""

    context: int

    @property
    def threshold(self) -> int:
        """How long a request may be; a quarter is for the answer."""
        return self.context - min(16_384, self.context // 4)

    @property
    def keep(self) -> int:
        return min(20_000, self.context // 4)

    @property
    def summary(self) -> int:
        return min(4_096, self.context // 4)

    @property
    def shown(self) -> int:
        """How long the transcript in a request for a summary may be."""
        return self.threshold - self.summary - min(1_000, self.context // 4)


class Walk:
    """Goes along the entries of a playback and says which requests there have to be."""

    def __init__(self, requests: Sequence[ModelRequest], window: Window) -> None:
        self.kinds: Counter[str] = Counter()
        """What the compactions were like."""
        self._window = window
        self._answers: dict[Attempt, ModelRequest] = {}
        self._summaries: defaultdict[str, list[ModelRequest]] = defaultdict(list)
        for request in requests:
            if request.purpose == "summary":
                [part] = summary(request).parts
                assert isinstance(part, TextPart)
                self._summaries[part.text].append(request)
            else:
                assert attempt_of(request) not in self._answers, "a request was made twice"
                self._answers[attempt_of(request)] = request
        first = next(iter(self._answers.values()))
        tools = [(tool.name, tool.description, json.dumps(tool.parameters)) for tool in first.tools]
        self._overhead = estimate_request(first.instructions, tools)
        self._newest: Compaction | None = None
        self._pieces: list[Shown] = []
        """What is shown behind the summary."""
        self._kept = 0
        """How many of them the newest compaction kept."""
        self._just_compacted = False
        self._place = Attempt(0, 0, 1)
        self._asked_before: list[Message] = []

    def go(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            match entry.body:
                case Compaction():
                    self._compacted(entry.body)
                    continue
                case UserMessage():
                    self._place = Attempt(self._place.turn + 1, 0, 1)
                case AssistantMessage():
                    request = self._answers.pop(self._place, None)
                    if request is not None:
                        self._asked(request)
                    turn, answer, attempt = self._place
                    failed = entry.body.stop_reason in ("error", "aborted")
                    self._place = Attempt(turn, answer, attempt + 1) if failed else Attempt(turn, answer + 1, 1)
                case _:
                    pass
            pieces = shown([entry])
            self._pieces += pieces
            self._just_compacted = self._just_compacted and not pieces
        assert not self._answers, f"asked, and no answer came of it: {list(self._answers)}"
        assert not self._summaries, "a summary was asked for and not placed"

    def _total(self) -> int:
        """How long the next request is. What was counted before the newest compaction says nothing any more."""
        tokens = [piece.tokens for piece in self._pieces]
        since = [piece.message for piece in self._pieces[self._kept :]]
        before = self._overhead + sum(tokens[: self._kept])
        if self._newest is not None:
            before += estimate_message(shown_summary(self._newest.summary))
        return counted(since, tokens[self._kept :], before)

    def _asked(self, request: ModelRequest) -> None:
        window, messages, pieces = self._window, list(request.messages), self._pieces
        behind = messages
        if self._newest is not None:
            assert is_summary(messages[0], self._newest), self._place
            behind = messages[1:]
        assert behind == [piece.message for piece in pieces], self._place
        assert request.stands_for == (None if self._newest is None else self._newest.stands_for)
        # It is within the window, but for what nobody has answered.
        tokens = self._overhead + sum(map(estimate_message, messages))
        assert tokens <= window.threshold or len(pieces) == unanswered(pieces), (self._place, tokens)
        if not self._just_compacted and self._total() > window.threshold:
            cut = cut_of(pieces, window.keep)
            assert cut is None or not self._worth(pieces[: cut.index]) or not self._worth_again(), self._place
        # It begins with the one before, unless that was summarized since.
        assert messages[: len(self._asked_before)] == self._asked_before, self._place
        self._asked_before = messages

    def _compacted(self, body: Compaction) -> None:
        pieces, window = self._pieces, self._window
        assert not self._just_compacted, self._place
        assert self._total() > window.threshold, self._place
        cut = cut_of(pieces, window.keep)
        assert cut is not None, self._place
        before, kept = pieces[: cut.index], pieces[cut.index :]
        assert self._worth(before), self._place
        assert self._worth_again(), self._place
        assert body.kept_from == (kept[0].id if kept else None), self._place
        assert body.split == cut.split, self._place
        assert body.tokens_before == self._total(), self._place
        assert body.stands_for == standing_for(before, self._earlier()), self._place
        assert body.model == RecordedModel(()).identity
        for request in self._summaries.pop(body.summary):
            self._summarized(request, before, body)
        kind = "nothing kept" if not kept else "split" if body.split else "whole turns"
        self.kinds[kind] += 1
        self.kinds["behind results"] += isinstance(pieces[-1].message, ToolResultMessage)
        self._newest, self._pieces, self._kept = body, kept, len(kept)
        self._just_compacted = True
        self._asked_before = []

    def _worth_again(self) -> bool:
        """Whether enough came since the newest compaction."""
        return self._newest is None or self._worth(self._pieces[self._kept :])

    def _worth(self, before: Sequence[Shown]) -> bool:
        return sum(piece.tokens for piece in before) >= max(1, self._window.keep // 4)

    def _earlier(self) -> StandsFor | None:
        return None if self._newest is None else self._newest.stands_for

    def _summarized(self, request: ModelRequest, before: Sequence[Shown], body: Compaction) -> None:
        """The request for a summary is one of its own, within the window, and of all that it stands for."""
        [message] = request.messages
        assert isinstance(message, UserMessage)
        [part] = message.content
        assert isinstance(part, TextPart)
        assert (list(request.tools), request.output) == ([], None)
        assert request.stands_for == self._earlier()
        assert request.instructions
        assert request.max_output_tokens == self._window.summary
        assert estimate_text(part.text) <= self._window.shown
        assert part.text.count("<transcript>") == part.text.count("</transcript>") == 1
        assert part.text.count("<unfinished-turn>") == int(body.split)
        earlier = f"<earlier-summary>\n{'' if self._newest is None else self._newest.summary}\n</earlier-summary>"
        assert (earlier in part.text) == (self._newest is not None)
        if "messages left out …]" not in part.text and "message left out …]" not in part.text:
            users = sum(isinstance(piece.message, UserMessage) for piece in before)
            assert part.text.count('<said by="user">') == users
