"""Clients of OpenAI's SDK for the two adapters: one for each event loop, made late, without retries of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from agentlane import ImagePart, InvalidDefinition, ModelError, ModelRequest
from agentlane.models.http_errors import secrets_of
from agentlane.models.sent_names import SentNames

try:
    import openai
except ModuleNotFoundError as missing:
    from agentlane.models.names import how_to_install

    raise ModuleNotFoundError(
        f"the package 'openai' is not installed; {how_to_install('openai')}", name="openai"
    ) from missing

SDK: TypeAlias = Any
"""A client of the SDK: foreign, whether its types are installed here or not."""

OPENAI_HOST = "api.openai.com"
TIMEOUT_MS = 600_000
CONNECT_TIMEOUT_MS = 5_000


class Clients:
    """The client of the running event loop. Connections belong to a loop: those of another one cannot be used."""

    def __init__(
        self,
        *,
        client: SDK | None,
        api_key: str | None,
        base_url: str | None,
        headers: Mapping[str, str] | None,
        timeout_ms: int | None,
        key_needed: bool,
    ) -> None:
        if client is not None and (api_key is not None or base_url is not None or headers is not None):
            raise InvalidDefinition("client= has its own api_key, base_url and headers; give them to it")
        if client is not None and not isinstance(client, openai.AsyncOpenAI):
            raise InvalidDefinition(f"client={client!r}: an openai.AsyncOpenAI is needed here")
        options: dict[str, Any] = {"max_retries": 0}  # every attempt is one of the library's
        if timeout_ms is not None or client is None:
            read_ms = TIMEOUT_MS if timeout_ms is None else timeout_ms
            options["timeout"] = openai.Timeout(read_ms / 1_000, connect=CONNECT_TIMEOUT_MS / 1_000)
        self._given = None if client is None else client.with_options(**options)
        self._options = options | {"api_key": api_key, "base_url": base_url, "default_headers": headers}
        self._key_needed = key_needed
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SDK] = WeakKeyDictionary()

    def current(self) -> SDK:
        """The client to ask with. ``ModelError`` where it has no key, or cannot be made."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        made = self._by_loop.get(loop)
        if made is None:
            made = self._by_loop[loop] = self._make()
        return made

    def secrets(self) -> Iterator[str]:
        """What no failure may say."""
        made = self._given or self._by_loop.get(asyncio.get_running_loop())
        yield from secrets_of(self._options, made)

    @property
    def at_openai(self) -> bool:
        """Whether requests go to OpenAI's own address, as far as can be told."""
        if self._given is not None:
            return OPENAI_HOST in str(self._given.base_url)
        return OPENAI_HOST in str(self._options["base_url"] or os.environ.get("OPENAI_BASE_URL") or OPENAI_HOST)

    async def aclose(self) -> None:
        """Close the connections of the running loop's client, unless it was given."""
        made = self._by_loop.pop(asyncio.get_running_loop(), None)
        if made is not None:
            await made.close()

    def _make(self) -> SDK:
        options = dict(self._options)
        elsewhere = options["base_url"] or os.environ.get("OPENAI_BASE_URL")
        if options["api_key"] is None and not os.environ.get("OPENAI_API_KEY") and elsewhere and not self._key_needed:
            options["api_key"] = "none"  # servers of one's own ask for none, and the SDK insists
        try:
            return openai.AsyncOpenAI(**options)
        except openai.OpenAIError as error:
            raise ModelError(
                f"no request can be made: {error} Or give the model api_key=.", kind="authentication_failed", sent=False
            ) from error


def checked_settings(request: ModelRequest, reserved: frozenset[str]) -> dict[str, Any]:
    """The agent's settings, which are fields of the request; ``ModelError`` for those that the adapter has to fill."""
    taken = sorted(reserved & set(request.settings))
    if taken:
        raise ModelError(
            f"the setting {taken[0]!r} is the library's to fill; leave it out of settings=",
            kind="invalid_request",
            sent=False,
        )
    return dict(request.settings)


def choose_tools(settings: dict[str, Any], names: SentNames, *, tools: bool) -> None:
    """Settings of how tools are called: by the names that are sent, and none where there are no tools."""
    if not tools:
        settings.pop("tool_choice", None)
        settings.pop("parallel_tool_calls", None)
    elif "tool_choice" in settings:
        settings["tool_choice"] = names.chosen(settings["tool_choice"])


def cache_key(request: ModelRequest) -> str:
    """What requests of one lane have in common, for the provider's cache of prompts."""
    return sha256(f"{request.session_id}|{request.lane}".encode()).hexdigest()[:32]


def data_url(image: ImagePart) -> str:
    """An image as both interfaces take it."""
    return f"data:{image.mime_type};base64,{image.data}"


def parameters_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool's parameters: an object, whose properties have to be there even if there are none."""
    return {"type": "object", "properties": {}, **schema}
