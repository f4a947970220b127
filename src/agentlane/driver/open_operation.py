"""An open operation in memory: what its addresses hold, and what is known of its current batch."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from agentlane.agent import Agent
from agentlane.data.approvals import Approval, Decision
from agentlane.data.inbox import QueuedInput
from agentlane.data.messages import AssistantMessage, Frame, ToolCallPart, UserPart
from agentlane.data.operations import OperationConfig, OperationMeta, OperationState, SummaryPrep
from agentlane.data.results import OperationResult
from agentlane.data.usage import UsageTotals
from agentlane.driver.frames import FrameLog
from agentlane.driver.tool_results import Sealed
from agentlane.machine.rules import Rules


class OpenOperation:
    """Current state of one operation. Changed only when a commit is published."""

    __slots__ = (
        "abort_waiting",
        "answer_text",
        "answers",
        "args",
        "calls",
        "config",
        "corrections",
        "cut",
        "decisions",
        "deps",
        "driven",
        "follow_ups",
        "frames",
        "id",
        "memos",
        "meta",
        "pending",
        "prep",
        "progress",
        "restored",
        "result",
        "returned",
        "rules",
        "staged",
        "state",
        "streaming",
        "summary",
        "usage",
        "version",
    )

    def __init__(self, id: str, meta: OperationMeta, config: OperationConfig, state: OperationState) -> None:
        self.id = id
        self.meta = meta
        self.state = state
        self.version = 0
        self.configure(config)
        self.usage = UsageTotals()
        self.answer_text = ""
        self.calls: tuple[ToolCallPart, ...] = ()
        self.cut = False
        self.corrections = 0
        """How often the model was told that its answer is not what was asked for."""
        self.staged: dict[int, Sealed] = {}
        self.progress: dict[int, tuple[UserPart, ...]] = {}
        self.memos: dict[int, dict[str, bytes]] = {}
        self.answers: dict[int, dict[str, bytes]] = {}
        """What people answered to the calls' questions, by the questions' names."""
        self.frames: list[Frame] = []
        self.streaming: tuple[str, FrameLog | None] = ("", None)
        """The answer of the request that this process sent last, by its id: what was shown, saved or not."""
        self.restored = False
        """It was open already when the session was opened."""
        self.args: dict[int, dict[str, Any]] = {}
        """Arguments of the batch's calls that are not the model's. Never changed, but replaced."""
        self.pending: dict[int, Approval] = {}
        """Open questions about the batch's calls. Never changed, but replaced."""
        self.decisions: tuple[Decision, ...] = ()
        self.follow_ups = 0
        """Messages that hooks have put behind answers."""
        self.driven = False
        """An earlier pass drove the operation, or may have: in an earlier process, or in this one."""
        self.abort_waiting = False
        """An abort stands in the line: intents that are published meanwhile start nothing."""
        self.returned: tuple[QueuedInput, ...] = ()
        """Input that its abort gave back."""
        self.result: OperationResult | None = None
        self.prep: SummaryPrep | None = None
        """What the summary that is asked for now is made of."""
        self.summary: tuple[str, str] | None = None
        """The entry of the last summary that was placed for it, and what that says."""
        self.deps: Any | UnsetType = UNSET
        """What the caller gave for this operation alone, in the place of the agent's. Never stored."""

    def deps_of(self, agent: Agent[Any, Any]) -> Any:
        """Its own dependencies, or those of the agent that runs it."""
        return agent.deps if self.deps is UNSET else self.deps

    def take_deps(self, deps: Any | UnsetType) -> None:
        """Effects that start from now on are given these."""
        if deps is not UNSET and self.result is None:
            self.deps = deps

    def configure(self, config: OperationConfig) -> None:
        """Use another configuration from the next step on."""
        self.config = config
        self.rules = Rules(
            config.retry,
            config.limits,
            steering="all" if config.steering is UNSET else config.steering,
            follow_ups="one" if config.follow_ups is UNSET else config.follow_ups,
        )

    @property
    def cancelled(self) -> bool:
        """Whether an abort is committed."""
        return self.state.cancel_requested_at is not None

    def take_answer(self, message: AssistantMessage) -> None:
        """The answer at the end of the path is this one now."""
        if message.stop_reason not in ("error", "aborted"):
            self.answer_text = message.text
            self.calls = message.calls
            self.cut = message.stop_reason == "length"

    def take_state(self, state: OperationState, usage: UsageTotals, staged: dict[int, Sealed]) -> None:
        """A commit is published: this is the state now."""
        self.version += 1
        self.state = state
        self.usage = usage
        self.staged = staged

    def take_restored(self, restored: OpenOperation) -> None:
        """Take what was read from the store for the same operation."""
        self.usage = restored.usage
        self.answer_text = restored.answer_text
        self.calls = restored.calls
        self.cut = restored.cut
        self.corrections = restored.corrections
        self.staged = restored.staged
        self.follow_ups = restored.follow_ups
        self.driven = True
        self.progress = restored.progress
        self.memos = restored.memos
        self.answers = restored.answers
        self.frames = restored.frames
        self.args = restored.args
        self.decisions = restored.decisions
        self.prep = restored.prep
        self.summary = restored.summary
