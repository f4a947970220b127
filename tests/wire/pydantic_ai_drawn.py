"""A model of pydantic-ai's kind that answers with the parts it is given, as if its provider had said them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, StreamedResponse
from pydantic_ai.usage import RequestUsage


class DrawnModel(Model):
    """Each answer is a list of parts; the first ``paused`` of them are pauses, and all are said to be ``by`` someone.

    ``received`` is what it was asked.
    """

    def __init__(self, *answers: Sequence[Any], paused: int = 0, by: str = "drawn") -> None:
        super().__init__()
        self._answers = [list(each[0]) if each and isinstance(each[0], list) else list(each) for each in answers]
        self._paused = paused
        self._by = by
        self.received: list[list[ModelMessage]] = []

    @property
    def model_name(self) -> str:
        return "parts"

    @property
    def system(self) -> str:
        return "drawn"

    async def request(self, messages: list[ModelMessage], settings: Any, parameters: Any) -> ModelResponse:
        raise NotImplementedError("it is asked for streams only")

    @asynccontextmanager
    async def request_stream(
        self, messages: list[ModelMessage], settings: Any, parameters: Any, context: Any = None
    ) -> AsyncGenerator[StreamedResponse, None]:
        self.received.append(messages)
        paused = len(self.received) <= self._paused
        response = ModelResponse(
            parts=self._answers.pop(0),
            model_name=self.model_name,
            provider_name=self._by,
            provider_url="https://drawn.test",
            usage=RequestUsage(input_tokens=10, output_tokens=5),
            finish_reason=None if paused else "stop",
            state="suspended" if paused else "complete",
        )
        made = CompletedStreamedResponse(response, model_request_parameters=parameters, replay_events=True)
        yield made
