"""A request of the library in pydantic-ai's terms, by what the providers behind it are known to refuse.

- What stands between two answers is one request of pydantic-ai's: results of calls first, then what the user said. The
  first and the last message are the user's; where nobody said anything, a few words say so.
- An image that the model cannot see is a text that says so: refused, it would end the conversation.
- Text of nothing but white space is left out, and a result of nothing else says that there was no output.
- A result that is an error is marked as one, which pydantic-ai says in words where a provider has no mark for it. It
  holds text only: its images follow behind.
- An answer does not end in reasoning. Reasoning and opaque parts go back to the model that gave them, as they came.
- Ids of calls and names of tools are of ``A-Z a-z 0-9 _ -``, at most 64 of them: others are written so, and names are
  read back. Ids are unique.
- A call that the provider ran itself goes back with its result, and a result with its call, or neither does.
- A request that shows calls defines tools: those that it shows are, where the agent has none, and none may be called.
- Reasoning has a budget below the bound of the answer: where the library bounds one closer than that, and in a summary,
  there is none.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from agentlane import (
    AssistantMessage,
    ImagePart,
    Message,
    ModelError,
    ModelIdentity,
    ModelRequest,
    OutputSchema,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.models.answering import sent_arguments, shown_image
from agentlane.models.options import bound_answer, leave_out_of_object, leave_out_of_summary, setting_object
from agentlane.models.pydantic_ai_marks import Foreign, Marks, Origin
from agentlane.models.sent_names import SentIds, SentNames

NO_OUTPUT = "(no output)"
NOTHING_SAID = "(nothing was said)"
GO_ON = "(go on)"
RESERVED = frozenset({"max_retries"})
"""What settings cannot say: every attempt is one of the library's."""
NOT_IN_SUMMARIES = (
    *("anthropic_container", "anthropic_context_management", "anthropic_thinking", "openai_builtin_tools"),
    *("openai_native_tools", "openai_prediction", "thinking"),
)
"""Settings that a request for a summary is made without: it runs no tools and thinks of nothing beside its text."""


class SentRequest(NamedTuple):
    """What is sent, and how its tools are called in it."""

    messages: list[Foreign]
    settings: dict[str, Any]
    parameters: Foreign
    names: SentNames


class Options(NamedTuple):
    """What a model's requests have beside the agent's."""

    settings: Mapping[str, Any]
    headers: Mapping[str, str]
    native_tools: Sequence[Foreign]
    native_output: bool
    """Whether the provider takes a schema for the answer; else the model is told of it in words."""
    id_length: int | None = None
    """How long ids of calls have to be, in letters and digits, where the provider wants just that."""
    images: bool = True
    """Whether the model can see images."""
    own: Mapping[str, Any] = {}
    """The settings that a model object has itself, which pydantic-ai takes where a request has none."""


def sent_request(request: ModelRequest, options: Options, marks: Marks, identity: ModelIdentity) -> SentRequest:
    """The request in pydantic-ai's terms. It shares nothing with ``request`` that can be changed.

    Raises ``ModelError`` of kind ``invalid_request``, not sent, for settings that are the library's to fill.
    """
    if refused := sorted(RESERVED & set(request.settings)):
        raise ModelError(
            f"the setting {refused[0]!r} is the library's to fill; leave it out of settings=",
            kind="invalid_request",
            sent=False,
        )
    settings = {**options.settings, **request.settings}
    if options.headers:
        settings["extra_headers"] = {**options.headers, **setting_object(settings, "extra_headers")}
    _bound(settings, request, options.own)
    native_tools = options.native_tools if request.purpose == "answer" else ()
    names = SentNames(tool.name for tool in request.tools)
    tools = [
        _defined(names.sent(tool.name), tool.description, {"type": "object", "properties": {}, **tool.parameters})
        for tool in request.tools
    ]
    chosen = settings.get("tool_choice")
    if isinstance(chosen, list | tuple) and all(isinstance(name, str) for name in chosen):
        settings["tool_choice"] = [each["name"] for each in names.chosen([{"name": name} for name in chosen])]
    if not tools and not native_tools:
        settings.pop("tool_choice", None)
        settings.pop("parallel_tool_calls", None)
        tools = _shown(request.messages, names)
        if tools:
            settings["tool_choice"] = "none"
    output = request.output
    native = output is not None and options.native_output and _takes(output)
    parameters = ModelRequestParameters(
        function_tools=tools,
        native_tools=list(native_tools),
        **(_enforced(output) if native and output is not None else {}),
    )
    messages = _Conversation(identity, names, marks, options).of(request.messages)
    told = [request.instructions, "" if native or output is None else _told(output)]
    messages[-1].instructions = "\n\n".join(text for text in told if text.strip()) or None
    return SentRequest(messages, settings, parameters, names)


def _bound(settings: dict[str, Any], request: ModelRequest, own: Mapping[str, Any]) -> None:
    """Bound the answer, and leave out reasoning that does not fit under the bound, and what no summary has."""
    bound = request.max_output_tokens
    if bound is not None:
        settings.setdefault("max_tokens", own.get("max_tokens"))
        bound_answer(settings, "max_tokens", bound)
        if _budget(settings) >= settings["max_tokens"]:
            settings.pop("anthropic_thinking", None)
        if _budget(own) >= settings["max_tokens"]:
            settings.setdefault("anthropic_thinking", {"type": "disabled"})
    leave_out_of_summary(request, settings, NOT_IN_SUMMARIES)
    if request.purpose == "summary":
        leave_out_of_object(settings, "extra_body", "response_format", "thinking", "tool_choice", "tools")
        leave_out_of_object(settings, "bedrock_additional_model_requests_fields", "thinking")
        if own.get("thinking"):
            settings["thinking"] = False
        if _budget(own):
            settings["anthropic_thinking"] = {"type": "disabled"}


def _budget(settings: Mapping[str, Any]) -> int:
    thinking = settings.get("anthropic_thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) else 0


def _defined(name: str, description: str, parameters: dict[str, Any]) -> Foreign:
    # strict=False: a provider's strict form would make of it a schema of other arguments.
    described = description if description.strip() else f"The tool {name}."  # an empty one is refused by some
    return ToolDefinition(name=name, description=described, parameters_json_schema=parameters, strict=False)


def _shown(messages: Sequence[Message], names: SentNames) -> list[Foreign]:
    """Tools of the calls that are shown, for a request that has no others."""
    shown = dict.fromkeys(call.name for m in messages if isinstance(m, AssistantMessage) for call in m.calls)
    return [_defined(names.sent(name), "No longer available.", {"type": "object", "properties": {}}) for name in shown]


def _takes(output: OutputSchema) -> bool:
    """Whether the output's schema has a form that providers enforce: an object whose keys all have names."""
    return output.schema.get("type") == "object" and not _has_free_keys(output.schema)


def _enforced(output: OutputSchema) -> dict[str, Any]:
    wanted = OutputObjectDefinition(json_schema=output.schema, name=output.name)
    return {"output_mode": "native", "output_object": wanted, "allow_text_output": True}


def _told(output: OutputSchema) -> str:
    schema = json.dumps(output.schema, ensure_ascii=False)
    return (
        "Your final answer, the one without tool calls, must be JSON of this JSON Schema and nothing else, without "
        f"any text or code fence around it:\n{schema}"
    )


def _has_free_keys(schema: object) -> bool:
    """Whether some object in it may have keys that are not named, which providers' forms of schemas do not know."""
    if isinstance(schema, Mapping):
        free = schema.get("type") == "object" and "properties" not in schema
        more = schema.get("additionalProperties") not in (None, False)
        return free or more or any(map(_has_free_keys, schema.values()))
    return isinstance(schema, list) and any(map(_has_free_keys, schema))


class _Conversation:
    """Messages as pydantic-ai has them: requests and responses in turn."""

    def __init__(self, identity: ModelIdentity, names: SentNames, marks: Marks, options: Options) -> None:
        self._identity = identity
        self._names = names
        self._marks = marks
        self._id_length = options.id_length
        self._images = options.images
        self._ids = SentIds()
        self._sent: list[Foreign] = []
        self._results: list[Foreign] = []
        self._said: list[Any] = []

    def of(self, messages: Sequence[Message]) -> list[Foreign]:
        for message in messages:
            match message:
                case UserMessage():
                    self._said += self._content(message.content)
                case ToolResultMessage():
                    self._result(message)
                case AssistantMessage():
                    self._answer(message)
        if not self._results and not self._said:
            self._said.append(GO_ON if self._sent else NOTHING_SAID)
        self._turn()
        return self._sent

    def _result(self, message: ToolResultMessage) -> None:
        content = self._content(message.content)
        texts = [each for each in content if isinstance(each, str)]
        images = [each for each in content if not isinstance(each, str)]
        text = "\n".join(texts)
        if message.is_error:
            self._said += images
            images = []
        if not images:
            text = text or NO_OUTPUT
        self._results.append(
            pai.ToolReturnPart(
                tool_name=self._names.sent(message.name),
                content=[*([text] if text else []), *images] if images else text,
                tool_call_id=self._fitting(self._ids.result(message.call_id)),
                outcome="failed" if message.is_error else "success",
            )
        )

    def _answer(self, message: AssistantMessage) -> None:
        found = list(self._parts(message))
        while found and isinstance(found[-1][0], pai.ThinkingPart):
            found.pop()
        if not found:
            return
        if not self._sent and not self._results and not self._said:
            self._said.append(NOTHING_SAID)
        self._turn()
        usual = self._marks.usual
        origin = next((told for _, told in found if told != usual), usual)
        self._sent.append(
            pai.ModelResponse(
                parts=[part for part, _ in found],
                model_name=self._identity.name if message.model == self._identity else None,
                provider_name=origin.provider_name if message.model == self._identity else None,
                canonical_system=origin.canonical_system if message.model == self._identity else None,
            )
        )

    def _turn(self) -> None:
        """Close the user's turn, if there is one."""
        parts = list(self._results)
        if self._said:
            alone = len(self._said) == 1 and isinstance(self._said[0], str)
            parts.append(pai.UserPromptPart(content=self._said[0] if alone else list(self._said)))
        if parts:
            self._sent.append(pai.ModelRequest(parts=parts))
        self._results, self._said = [], []

    def _parts(self, message: AssistantMessage) -> Iterator[tuple[Foreign, Origin]]:
        own = message.model == self._identity
        marks = self._marks
        for part in message.content:
            match part:
                case TextPart():
                    if part.text.strip():
                        yield marks.text_back(part) if own else (pai.TextPart(content=part.text), marks.usual)
                case ThinkingPart():
                    if own:
                        yield marks.thinking_back(part)
                case ToolCallPart():
                    yield self._call(part, own)
                case ProviderPart():
                    back = marks.other_back(part) if own else None
                    if back is not None and _is_whole(part, message):
                        yield back

    def _call(self, part: ToolCallPart, own: bool) -> tuple[Foreign, Origin]:
        name, arguments = self._names.sent(part.name), sent_arguments(part)
        id = self._fitting(self._ids.call(part.id))
        if own:
            return self._marks.call_back(part, name, id, arguments)
        return pai.ToolCallPart(tool_name=name, args=arguments, tool_call_id=id), self._marks.usual

    def _content(self, content: Sequence[TextPart | ImagePart]) -> list[Any]:
        return [shown for part in content if (shown := _item(part, self._images)) is not None]

    def _fitting(self, id: str) -> str:
        """The id, or one of the length that the provider wants; the same for the same id."""
        if self._id_length is None or (len(id) == self._id_length and id.isalnum()):
            return id
        return sha256(id.encode()).hexdigest()[: self._id_length]


def _is_whole(part: ProviderPart, message: AssistantMessage) -> bool:
    """Whether what the provider ran itself has its other half in the answer."""
    halves = ("builtin-tool-call", "builtin-tool-return")
    if part.data.get("part_kind") not in halves:
        return True
    found = {
        each.data.get("part_kind")
        for each in message.content
        if isinstance(each, ProviderPart)
        and isinstance(each.data, dict)
        and each.data.get("tool_call_id") == part.data.get("tool_call_id")
    }
    return found >= set(halves)


def _item(part: TextPart | ImagePart, images: bool) -> Any:
    if isinstance(part, TextPart):
        return part.text if part.text.strip() else None
    if not images:
        return f"(an image of type {part.mime_type or 'unknown'}, which cannot be shown here)"
    shown = shown_image(part)
    return (
        shown if isinstance(shown, str) else pai.BinaryContent(data=b64decode(shown.data), media_type=shown.mime_type)
    )
