"""A request of the library as the body of one to Anthropic's messages API, by that provider's rules.

What the provider refuses, and what is made of it here:

- Roles alternate, and the first and the last turn are the user's: neighbours of one role are one turn; where a turn is
  wanted that nobody took, it says so in a few words.
- Results of calls come first in their user turn, each behind the answer that asked for it. A result that is an error
  holds text only: its images follow behind the results of its turn.
- Text of nothing but white space is left out, and a result of nothing else says that there was no output.
- An answer does not end in reasoning, and reasoning goes back whole, with its signature, to the model that gave it.
- Ids of calls and names of tools are of ``A-Z a-z 0-9 _ -``: others are written so, and names are read back.
- A call of a tool that the provider runs itself goes back only with its result, or while its result is awaited.
- A request that shows calls defines tools: those that it shows are, where the agent has none, and none may be called.
- Reasoning has a budget below the bound of the answer: where the library bounds one closer than that, and in a summary,
  there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

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
from agentlane.models.options import bound_answer, leave_out_of_object, leave_out_of_summary, setting_list
from agentlane.models.sent_names import SentIds, SentNames

Block: TypeAlias = dict[str, Any]
CacheTime: TypeAlias = Literal["5m", "1h"]

PROVIDER = "anthropic"
NO_OUTPUT = "(no output)"
NOTHING_SAID = "(nothing was said)"
GO_ON = "(go on)"
LENGTH_MAX = 128
"""Of a tool's name and, as far as is known, of a call's id."""
OWN_FIELDS = frozenset({"messages", "model", "stream", "system"})
"""What a request is made of; settings cannot say it."""

NOT_IN_SUMMARIES = ("container", "context_management", "mcp_servers", "output_format", "thinking", "tools")
"""Settings that a request for a summary is made without: it runs no tools and thinks of nothing beside its text."""


class WireRequest(NamedTuple):
    """What is sent: the body but for ``stream``, headers beside the client's, and how its tools are called in it."""

    body: dict[str, Any]
    headers: dict[str, str]
    names: SentNames

    def going_on(self, answer: AssistantMessage, identity: ModelIdentity) -> dict[str, Any]:
        """The body that asks the provider to go on with an answer in which it paused, which goes back as it came."""
        blocks = list(_answer_blocks(answer, identity, self.names, SentIds(length_max=LENGTH_MAX), None))
        return {**self.body, "messages": [*self.body["messages"], {"role": "assistant", "content": blocks}]}


def wire_request(
    request: ModelRequest,
    *,
    identity: ModelIdentity,
    max_tokens: int,
    cache: CacheTime | None,
    output_format: Block | None,
) -> WireRequest:
    """The body for ``request``. It shares nothing with it that can be changed.

    ``output_format`` is the provider's own form of the output schema; without one the model is told in words.
    Raises ``ModelError`` of kind ``invalid_request``, not sent, for settings that are the library's to fill.
    """
    given = dict(request.settings)
    if refused := sorted(OWN_FIELDS & set(given)):
        raise ModelError(
            f"the setting {refused[0]!r} is the library's to fill; leave it out of settings=",
            kind="invalid_request",
            sent=False,
        )
    leave_out_of_summary(request, given, NOT_IN_SUMMARIES)
    if request.purpose == "summary":
        leave_out_of_object(given, "output_config", "format")
    given.setdefault("max_tokens", max_tokens)
    _bound(given, request.max_output_tokens)
    server_tools = setting_list(given, "tools", Mapping, "objects")
    headers = _betas(given)
    own = [str(tool.get("name")) for tool in server_tools]
    names = SentNames([*own, *(tool.name for tool in request.tools)], length_max=LENGTH_MAX)
    turns = _turns(request.messages, identity, names)
    if "tool_choice" in given:
        given["tool_choice"] = names.chosen(given["tool_choice"])
    body: dict[str, Any] = {"model": identity.name, **given, "messages": turns}
    defined = _defined(request, names, server_tools)
    if defined:
        body["tools"] = defined
        if not request.tools and not server_tools:
            body["tool_choice"] = {"type": "none"}
    else:
        body.pop("tool_choice", None)
    system = _system(request.instructions, None if output_format else request.output)
    if system:
        body["system"] = system
    if output_format is not None:
        config = given.get("output_config")
        body["output_config"] = {**(config if isinstance(config, Mapping) else {}), "format": output_format}
    if cache is not None and "cache_control" not in given:  # with that the provider places the mark
        _mark_cached(defined, system, turns, cache)
    return WireRequest(body=body, headers=headers, names=names)


def _bound(given: dict[str, Any], bound: int | None) -> None:
    """Bound the answer, and leave out a budget of reasoning that does not fit under the bound."""
    if bound is None:
        return
    bound_answer(given, "max_tokens", bound)
    thinking = given.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    if isinstance(budget, int) and budget >= given["max_tokens"]:
        leave_out = ("thinking", "context_management")  # which may say what to keep of reasoning
        for name in leave_out:
            given.pop(name, None)


def _betas(given: dict[str, Any]) -> dict[str, str]:
    """The setting ``betas`` is a header and no part of the body."""
    if isinstance(given.get("betas"), str):
        given["betas"] = [given["betas"]]
    betas = setting_list(given, "betas", str, "texts")
    return {"anthropic-beta": ",".join(betas)} if betas else {}


def _system(instructions: str, output: OutputSchema | None) -> list[Block]:
    texts = [instructions] if instructions.strip() else []
    if output is not None:
        schema = json.dumps(output.schema, ensure_ascii=False)
        texts.append(
            "Your final answer, the one without tool calls, must be JSON of this JSON Schema and nothing else, without "
            f"any text or code fence around it:\n{schema}"
        )
    return [{"type": "text", "text": text} for text in texts]


def _mark_cached(tools: list[Block], system: list[Block], turns: list[Block], cache: CacheTime) -> None:
    """Up to four marks: behind the tools, behind the instructions, and behind the last two turns of the user.

    The last mark writes what the next request reads; the one before it is where the request before wrote, so that it is
    found however many blocks were added since.
    """
    mark: Block = {"type": "ephemeral"} if cache == "5m" else {"type": "ephemeral", "ttl": cache}
    users = [turn["content"] for turn in turns if turn["role"] == "user"]
    own = any("cache_control" in tool for tool in tools)  # of the settings: then the place behind the tools is used
    for blocks in ([] if own else tools, system, *users[-2:]):
        if blocks:
            blocks[-1] = {**blocks[-1], "cache_control": mark}


def _defined(request: ModelRequest, names: SentNames, server_tools: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The tools, those of the provider first; without any, those whose calls are shown."""
    found: list[Block] = [dict(tool) for tool in server_tools]
    for tool in request.tools:
        block: Block = {"name": names.sent(tool.name)}
        if tool.description.strip():
            block["description"] = tool.description
        found.append({**block, "input_schema": {"type": "object", **tool.parameters}})
    if found:
        return found
    shown = dict.fromkeys(call.name for m in request.messages if isinstance(m, AssistantMessage) for call in m.calls)
    return [
        {"name": names.sent(name), "description": "No longer available.", "input_schema": {"type": "object"}}
        for name in shown
    ]


def _turns(messages: Sequence[Message], identity: ModelIdentity, names: SentNames) -> list[Block]:
    turns = _Turns()
    ids = SentIds(length_max=LENGTH_MAX)
    answered = _answered(messages)
    for message in messages:
        match message:
            case UserMessage():
                turns.said(_shown(message.content))
            case ToolResultMessage():
                turns.result(message, ids.result(message.call_id))
            case AssistantMessage():
                turns.answer(list(_answer_blocks(message, identity, names, ids, answered)))
    return turns.closed()


class _Turns:
    """Turns that alternate. Results of a user's turn are kept before all else in it."""

    def __init__(self) -> None:
        self._turns: list[Block] = []
        self._results = 0

    def said(self, blocks: list[Block]) -> None:
        if blocks:
            self._turn("user").extend(blocks)

    def result(self, message: ToolResultMessage, id: str) -> None:
        turn = self._turn("user")
        content = _shown(message.content)
        behind = [block for block in content if message.is_error and block["type"] == "image"]
        content = [block for block in content if block not in behind]
        block: Block = {
            "type": "tool_result",
            "tool_use_id": id,
            "content": content or [{"type": "text", "text": NO_OUTPUT}],
        }
        turn.insert(self._results, {**block, "is_error": True} if message.is_error else block)
        self._results += 1
        turn.extend(behind)

    def answer(self, blocks: list[Block]) -> None:
        while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            blocks.pop()
        if not blocks:
            return
        if not self._turns:
            self.said([{"type": "text", "text": NOTHING_SAID}])
        self._turn("assistant").extend(blocks)

    def closed(self) -> list[Block]:
        if not self._turns or self._turns[-1]["role"] == "assistant":
            self.said([{"type": "text", "text": GO_ON if self._turns else NOTHING_SAID}])
        return self._turns

    def _turn(self, role: str) -> list[Block]:
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "content": []})
            self._results = 0
        content: list[Block] = self._turns[-1]["content"]
        return content


def _shown(content: Sequence[TextPart | ImagePart]) -> list[Block]:
    return [block for part in content if (block := _user_block(part)) is not None]


def _user_block(part: TextPart | ImagePart) -> Block | None:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    shown = shown_image(part)
    if isinstance(shown, str):
        return {"type": "text", "text": shown}
    return {"type": "image", "source": {"type": "base64", "media_type": shown.mime_type, "data": shown.data}}


def _answer_blocks(
    message: AssistantMessage, identity: ModelIdentity, names: SentNames, ids: SentIds, answered: set[str] | None
) -> Iterator[Block]:
    """The blocks of an answer; without ``answered`` the provider's own parts all go back."""
    own = message.model == identity
    for part in message.content:
        match part:
            case TextPart():
                if part.text.strip():
                    yield {"type": "text", "text": part.text, **(_mark(part.signature) if own else {})}
            case ThinkingPart():
                if own and part.signature and part.redacted:
                    yield {"type": "redacted_thinking", "data": part.signature}
                elif own and part.signature:
                    yield {"type": "thinking", "thinking": part.text, "signature": part.signature}
            case ToolCallPart():
                block: Block = {"type": "tool_use", "id": ids.call(part.id), "name": names.sent(part.name)}
                yield {**block, "input": sent_arguments(part), **(_mark(part.signature) if own else {})}
            case ProviderPart():
                if part.provider == PROVIDER and (answered is None or _may_go_back(part.data, message, answered)):
                    yield dict(part.data)


def _mark(signature: str | None) -> Block:
    """What a block had beside the library's fields (see ``anthropic_answer``): citations, or who called a tool."""
    if signature is None:
        return {}
    try:
        mark = json.loads(signature)
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) else {}


def _answered(messages: Sequence[Message]) -> set[str]:
    """Ids of the provider's own calls that have their result, and of the results that have their call."""
    asked: set[str] = set()
    found: set[str] = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            for part in message.content:
                if isinstance(part, ProviderPart) and part.provider == PROVIDER and isinstance(part.data, dict):
                    asked.add(str(part.data.get("id")))
                    found.add(str(part.data.get("tool_use_id")))
    return asked & found


def _may_go_back(data: object, message: AssistantMessage, answered: set[str]) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        return False
    if data["type"].endswith("_tool_result"):
        return str(data.get("tool_use_id")) in answered
    if data["type"].endswith("_tool_use") or data["type"] == "server_tool_use":
        id = str(data.get("id"))
        return id in answered or any(id in (call.signature or "") for call in message.calls)
    return True
