"""One server and a client for each model of it, for all tests of a module: an SDK's client is dear to make."""

from __future__ import annotations

from typing import Any

from agentlane import ModelRequest
from tests.wire.asking import Answered, ask, request
from tests.wire.openai_apis import Api
from tests.wire.server import Reply, WireServer


class Wire:
    """Models of one server. All of it happens on one event loop."""

    def __init__(self, server: WireServer) -> None:
        self.server = server
        self._models: dict[str, Any] = {}

    def model(self, api: Api, **options: Any) -> Any:
        """The model with these options."""
        key = f"{api.name} {sorted(options.items())}"
        if key not in self._models:
            self._models[key] = api.model(self.server.url, **options)
        return self._models[key]

    async def answered(self, api: Api, reply: Reply, given: ModelRequest | None = None, **options: Any) -> Answered:
        """What the model makes of a reply, which it asks for once."""
        asked = len(self.server.requests)
        self.server.add(reply)
        found = await ask(self.model(api, **options), given)
        assert len(self.server.requests) == asked + 1, "the SDK asked again by itself"
        return found

    async def sent(self, api: Api, *messages: Any, **options: Any) -> dict[str, Any]:
        """The request of these messages as it comes to the server; the checker has nothing against it."""
        found = await self.answered(api, api.reply("ok"), request(*messages, **options))
        assert found.error is None
        body: dict[str, Any] = self.server.requests[-1].body
        assert api.breaches(body) == []
        return body

    async def aclose(self) -> None:
        """Close what the models keep open."""
        for model in self._models.values():
            await model.aclose()
