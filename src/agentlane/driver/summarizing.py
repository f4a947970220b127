"""What a pass summarizes, and when: before a request that would be too long, after one that was, and as it is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.entries import Compaction, Custom
from agentlane.data.messages import AssistantMessage, ErrorInfo, Message, ModelIdentity, TextPart, ToolResultMessage
from agentlane.data.operations import (
    Checkpoint,
    CompactionPolicy,
    OperationConfig,
    Summarizing,
    SummaryPrep,
    SummaryReason,
    SummaryWait,
)
from agentlane.data.tokens import TokenCounter, estimate_request, estimate_text
from agentlane.driver.bounded_path import end_of_path
from agentlane.driver.counting import counter_of
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.views import resolve_model
from agentlane.errors import InvalidMessage
from agentlane.machine.compaction import Budgets, budgets, cut, stands_for, turn_start, worth
from agentlane.machine.context import ModelContext
from agentlane.machine.planning import SummaryView
from agentlane.machine.summaries import (
    SUMMARY_MAX,
    SummaryRequest,
    bounded_summary,
    branch_request,
    compaction_request,
)
from agentlane.model import ModelError

NOTHING = ErrorInfo(code="nothing_to_compact", message="there is nothing before the part that is kept")


class Wanted(NamedTuple):
    """What is to be summarized, or why nothing is."""

    reason: SummaryReason
    prep: SummaryPrep | None = None
    refused: ErrorInfo | None = None

    @property
    def shown(self) -> SummaryView:
        """As the machine plans with it."""
        return SummaryView(self.reason, self.refused)


class Summaries:
    """The summaries of one operation in one pass."""

    def __init__(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> None:
        self._lane = lane
        self._operation = operation
        self._agent = agent
        self._found: tuple[object, Wanted | None] = (None, None)
        self._fixed: tuple[object, int] = (None, 0)
        self.shortest = False
        """Whether the last request showed as little as one can."""
        self._limits: tuple[OperationConfig, ModelIdentity | None, Budgets] | None = None

    @property
    def policy(self) -> CompactionPolicy:
        """The operation's policy; the usual one where nothing is summarized by itself."""
        policy = self._operation.config.compaction
        return policy if isinstance(policy, CompactionPolicy) else CompactionPolicy()

    def wanted(self, draft: OperationDraft) -> Wanted | None:
        """What is to be summarized at the draft's state. With something to commit before it is only told that."""
        state = draft.state
        if not isinstance(state, Checkpoint) or state.cancel_requested_at is not None:
            return None
        if state.next == "summarize":
            reason = self._asked(state)
        elif state.next == "respond" and self._may_be_due(state) and self._is_due(draft):
            reason = "threshold"
        else:
            return None
        if not draft.empty:
            return Wanted(reason)
        key = (self._operation.version, state.trigger, self._lane.context)
        if self._found[0] != key:
            self._found = (key, self._prepared(reason))
        return self._found[1]

    @property
    def now(self) -> Wanted | None:
        """What was told last that is to be summarized."""
        return self._found[1]

    @property
    def can_be_made(self) -> bool:
        """Whether there is something to compact for who asks for it."""
        found = self._prepared("manual")
        return found is not None and found.prep is not None

    def can_recover(self, state: Any) -> bool:
        """Whether something can be summarized since a request was too long."""
        if self._operation.config.compaction is None or state.overflow is not None:
            return False
        found = self._prepared("overflow")
        return found is not None and found.prep is not None

    def _asked(self, state: Checkpoint) -> SummaryReason:
        if state.overflow is not None:
            return "overflow"
        return "manual" if self._operation.meta.compact is not None else "navigation"

    def _may_be_due(self, state: Checkpoint) -> bool:
        config = self._operation.config
        return config.compaction is not None and not state.compacted and not state.unsummarized

    def _is_due(self, draft: OperationDraft) -> bool:
        """Whether the next request would be longer than its model's window allows."""
        threshold = self._budgets().threshold
        if threshold is None:
            return False
        if any(isinstance(body, Custom) and body.type in self._agent.projectors for _, body in draft.path.placed):
            return True  # what they are shown as is known once they are placed: it is looked at again then
        count = counter_of(self._lane, self._agent)
        coming = sum(count(body) for _, body in draft.path.placed if isinstance(body, Message))
        return self._total(count) + coming > threshold

    def _total(self, count: TokenCounter) -> int:
        """How long the next request is as it stands. What the provider has counted of it counts where that is more."""
        context = self._lane.context
        total = context.tokens(count) + self._overhead()
        known = context.known_tokens if self._agent.token_counter is None else None
        return total if known is None else max(total, known[0] + context.tokens(count, start=known[1]))

    def _budgets(self) -> Budgets:
        config, refused_by = self._operation.config, self._refused_by
        known = self._limits
        if known is None or known[0] is not config or known[1] != refused_by:
            windows = [self._window(config.models)]
            if refused_by in config.models[1:]:
                windows.append(self._window(config.models[config.models.index(refused_by) :]))
            told = [window for window in windows if window is not None]
            self._limits = known = (config, refused_by, budgets(self.policy, min(told, default=None)))
        return known[2]

    @property
    def _refused_by(self) -> ModelIdentity | None:
        """The model whose refusal the next request has to mend: a fallback's window may be smaller."""
        state = self._operation.state
        if isinstance(state, Checkpoint | Summarizing | SummaryWait) and state.overflow is not None:
            return self._lane.refused_by
        return None

    def _window(self, models: Sequence[ModelIdentity]) -> int | None:
        """What the first of these that is here takes, as far as it tells."""
        index, model, _ = resolve_model(self._agent, models, 0)
        try:
            window: object = None if model is None else model.limits.context_tokens
        except Exception as error:  # foreign code
            self._lane.runtime.found(f"model {models[index]}: its limits cannot be read: {error!r}")
            return None
        return window if type(window) is int and window > 0 else None

    def _overhead(self) -> int:
        """What each request costs besides its messages. Instructions that a function makes are not counted."""
        config = self._operation.config
        if self._fixed[0] is not config:
            agent = self._agent
            text = agent.instructions if isinstance(agent.instructions, str) else ""
            tools = [agent.tools[name].shown() for name in config.tools if name in agent.tools]
            told = [(each.name, each.description, json.dumps(each.parameters)) for each in tools]
            self._fixed = (config, estimate_request(agent.shown_instructions(text, config.tools), told))
        return self._fixed[1]

    def _prepared(self, reason: SummaryReason) -> Wanted | None:
        lane, meta = self._lane, self._operation.meta
        tip = lane.tip
        if tip is None:
            return Wanted(reason, refused=NOTHING)
        context, count, limits = lane.context, counter_of(lane, self._agent), self._budgets()
        total = self._total(count)
        if reason == "navigation":
            target = None if meta.navigate is None else meta.navigate.to
            return Wanted(reason, SummaryPrep(tip=tip, tokens_before=total, target=target, shown_tokens=limits.shown))
        if reason == "overflow" and (limits.threshold is None or total <= limits.threshold):
            limits = budgets(self.policy, max(1, total * 3 // 4))  # the provider's window is not the one that is told
        keep = limits.keep
        if meta.compact is not None and meta.compact.keep_tokens is not None:
            keep = meta.compact.keep_tokens
        pieces, known = context.pieces(count), frozenset(lane.unanswered)
        waiting = [piece.id for piece in pieces if piece.id in known]  # one without anything in it is not shown
        place = cut(pieces, keep, len(waiting))
        if place is None and reason == "overflow":  # what is too long is in front of them, as an earlier summary is
            place = cut(pieces, 0, len(waiting)) or cut(pieces, 0, self._own_of(waiting))
        if place is None:
            return None if reason == "threshold" else Wanted(reason, refused=NOTHING)
        if reason == "threshold" and not worth(
            sum(piece.tokens for piece in pieces[: place.index]), keep, context.new_tokens(count)
        ):
            return None
        prep = SummaryPrep(
            tip=tip,
            kept_from=pieces[place.index].id if place.index < len(pieces) else None,
            split=place.split,
            tokens_before=total,
            stands_for=stands_for(pieces[: place.index], context.stands_for),
            shown_tokens=limits.shown,
        )
        return Wanted(reason, prep)

    def _own_of(self, waiting: Sequence[str]) -> int:
        """How many messages that were not answered are of this operation: those of runs that failed may be in the way
        of every later one."""
        inputs = self._operation.meta.inputs
        return len(waiting) - waiting.index(inputs[0]) if inputs and inputs[0] in waiting else len(waiting)

    # What is summarized.

    async def messages(self, prep: SummaryPrep) -> tuple[Sequence[Message], int | None]:
        """The messages that a summary is about, and which of them begins the turn that goes on behind it."""
        meta = self._operation.meta
        if meta.navigate is not None:
            return await self._left_behind(prep.tip, meta.base), None
        context = self._lane.context
        pieces = context.pieces(counter_of(self._lane, self._agent))
        index = next((i for i, piece in enumerate(pieces) if piece.id == prep.kept_from), len(pieces))
        if not index:
            return (), None
        messages = context.shown_between(pieces[0].id, pieces[index - 1].id)
        start = turn_start(pieces, index) if prep.split else 0
        if not prep.split or not start:
            return messages, 0 if prep.split else None
        return messages, len(context.shown_between(pieces[0].id, pieces[start - 1].id))

    @property
    def earlier(self) -> str | None:
        """The summary that a compaction carries on."""
        earlier = self._lane.context.earlier
        return None if earlier is None or self._operation.meta.navigate is not None else earlier[1].summary

    @property
    def output_tokens(self) -> int:
        """How long a summary may be."""
        return self._budgets().summary

    @property
    def most_tokens(self) -> int:
        """How long a summary is at most when it is placed: it must leave room for what goes on, or the lane could not.

        That is two thirds of what a request may have, or twice what was asked for if that is more. Where no window is
        known, what was shown before is taken for one.
        """
        limits, prep = self._budgets(), self._operation.prep
        shown = 0 if prep is None else prep.tokens_before
        threshold = shown * 3 // 4 if limits.threshold is None else limits.threshold
        return max(2 * limits.summary, threshold * 2 // 3)

    def bounded(self, message: AssistantMessage) -> AssistantMessage:
        """The answer to a request for a summary, cut where a model has not kept to its bound."""
        text = message.text
        if message.stop_reason in ("error", "aborted") or len(text) > SUMMARY_MAX:
            return message
        cut_text = bounded_summary(text, self.most_tokens, estimate_text)
        if cut_text == text:
            return message
        self._lane.runtime.found(
            f"operation {self._operation.id}: a summary of {len(text)} characters was cut to {len(cut_text)}, to leave "
            "room for what goes on"
        )
        parts = tuple(part for part in message.content if not isinstance(part, TextPart))
        return replace(message, content=(*parts, TextPart(text=cut_text)))

    def check_own(self, text: str) -> None:
        """Refuse a summary of a hook's that would leave no room, or that no model's would be taken as."""
        if len(text) > SUMMARY_MAX:
            raise InvalidMessage(f"text: the summary has {len(text)} characters, and {SUMMARY_MAX} are taken")
        tokens, most = estimate_text(text), self.most_tokens
        if self._budgets().threshold is not None and tokens > most:
            raise InvalidMessage(f"text: the summary has some {tokens} tokens, and {most} leave room for what goes on")

    @property
    def instructions(self) -> tuple[str, ...]:
        """What the summary is to look at besides what each does."""
        meta = self._operation.meta
        asked = meta.compact or meta.navigate
        return tuple(text for text in (self.policy.instructions, "" if asked is None else asked.instructions) if text)

    async def request(self, prep: SummaryPrep, shorter: int, asked: ModelIdentity) -> SummaryRequest:
        """What is asked of a model, by the window that it tells too; as often as it is ``shorter`` it shows half as
        much."""
        messages, turn = await self.messages(prep)
        if not messages and self.earlier is None:  # with other projectors than when it was decided
            why = "what is to be summarized shows a model nothing any more; go there without a summary"
            raise ModelError(why, kind=NOTHING.code, sent=False)
        bound, window = prep.shown_tokens, self._window((asked,))
        if window is not None and (shown := budgets(self.policy, window).shown) is not None:
            bound = shown if bound is None else min(bound, shown)
        request = self._request(messages, turn, bound)
        if shorter:
            whole = sum(estimate_text(part.text) for part in request.message.content if isinstance(part, TextPart))
            request = self._request(messages, turn, max(1, whole >> shorter))
        self.shortest = request == self._request(messages, turn, 1)
        return request

    def _request(self, messages: Sequence[Message], turn: int | None, bound: int | None) -> SummaryRequest:
        if self._operation.meta.navigate is not None:
            return branch_request(messages, instructions=self.instructions, max_tokens=bound, count=estimate_text)
        return compaction_request(
            messages,
            earlier=self.earlier,
            turn=turn,
            instructions=self.instructions,
            max_tokens=bound,
            count=estimate_text,
        )

    async def _left_behind(self, tip: str, base: str | None) -> Sequence[Message]:
        """What the model was shown of the path behind ``base``, but for a compaction of nothing that stands there.

        Results at its beginning come with the answer that they are for, which is before ``base`` or is it."""
        storage = self._lane.runtime.storage
        rows = [row for row in reversed(await storage.path(tip, stop_at=base)) if row.id != base]
        here = {None, *(row.id for row in rows)}
        bodies = [codec.BODY.decode(row.payload, f"entry {row.id}") for row in rows]
        context = ModelContext(self._lane.project)
        first = next((body for body in bodies if not isinstance(body, Custom)), None)
        if isinstance(first, ToolResultMessage):
            for entry in await end_of_path(storage, base):
                context.add(entry.id, entry.body)
            if context.open_calls() is None:
                context = ModelContext(self._lane.project)
        for row, body in zip(rows, bodies, strict=True):
            if isinstance(body, Compaction) and (body.kept_from not in here or not context.view()):
                continue  # it keeps all that came behind ``base``, and its summary is of what came before
            context.add(row.id, body)
        return context.view()
