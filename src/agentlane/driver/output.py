"""Whether the answer that would end an operation is what its agent asks for; what the model is told where it is not."""

from __future__ import annotations

from typing import Any

from agentlane.data.messages import ErrorInfo, UserMessage, user
from agentlane.data.operations import Checkpoint
from agentlane.driver.draft import OperationDraft
from agentlane.output import OutputError, OutputType


class OutputCheck:
    """Looks at the answer of an operation that is about to finish; the model is asked again ``retries`` times."""

    def __init__(self, type: OutputType[Any], retries: int) -> None:
        self._type = type
        self._retries = retries
        self._looked_at: str | None = None
        self._problem: str | None = None
        self.value: Any = None
        """The output of the answer that was looked at last, if it has one."""

    def look(self, draft: OperationDraft) -> UserMessage | ErrorInfo | None:
        """What the model is to be told, or the error if it may not be asked again; None if nothing is wrong."""
        state = draft.state
        if not isinstance(state, Checkpoint) or state.next != "finish" or state.cancel_requested_at is not None:
            return None
        if state.answer is None or state.trigger != state.answer:  # tools ended the run: there is no answer to check
            self.value, self._looked_at = None, None
            return None
        if self._looked_at != state.answer:
            self._look_at(state.answer, draft.answer_text)
        if self._problem is None:
            return None
        if draft.corrections < self._retries:
            return user(correction(self._type.shown().name, self._problem))
        asked = f"asked again {draft.corrections} times" if draft.corrections else "not asked again"
        return ErrorInfo(
            code="invalid_output", message=f"the answer is no {self._type.shown().name} ({asked}): {self._problem}"
        )

    def _look_at(self, answer: str, text: str) -> None:
        self._looked_at = answer
        self.value = self._problem = None
        try:
            self.value = self._type.value_in(text)
        except OutputError as error:
            self._problem = str(error)


def correction(name: str, problem: str) -> str:
    """What the model is told of an answer that is not what was asked for."""
    return (
        f"The answer does not fit the schema {name!r}: {problem}. Answer again with one JSON value that fits it, and "
        "with nothing else."
    )
