"""Counting tokens: by the agent's counter if it has one, which is foreign code and may fail; else by the estimate."""

from __future__ import annotations

from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import Message
from agentlane.data.tokens import TOKENS_MAX, TokenCounter, estimate_message
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.tool_results import error_text


def counter_of(lane: LaneCore, agent: Agent[Any, Any]) -> TokenCounter:
    """What counts the lane's messages; the same object as long as the agent's counter is, so that counts are kept."""
    given = agent.token_counter
    if given is None:
        return estimate_message
    known = lane.counter
    if not isinstance(known, Counter) or known.given is not given:
        lane.counter = known = Counter(lane, given)
    return known


class Counter:
    """An agent's counter. Where it fails the estimate is taken, which is said once."""

    __slots__ = ("_failed", "_lane", "given")

    def __init__(self, lane: LaneCore, given: TokenCounter) -> None:
        self.given = given
        self._lane = lane
        self._failed = False

    def __call__(self, message: Message) -> int:
        try:
            tokens: object = self.given(message)
            if type(tokens) is int and 0 <= tokens <= TOKENS_MAX:
                return tokens
            why = f"said {tokens!r}, which is no number of tokens"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code may raise anything, SystemExit included
            why = f"failed: {error_text(error)}"
        if not self._failed:
            self._failed = True
            self._lane.runtime.found(f"lane {self._lane.name!r}: the token counter {why}; the estimate is taken")
        return estimate_message(message)
