"""A process that runs an agent with a model of Anthropic, to be killed; and the agent, for those who go on with it.

As a script it loads the SDK once and then forks a child for each job, a line of JSON with ``url`` and ``target``. It
writes lines: ``pid N`` of the child, ``begun TOOL:ARGUMENT ATTEMPT`` as tools begin, and ``end STATUS`` of the child.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping

import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from agentlane import Agent, Model, NoActiveOperation, Prompt, RetryPolicy, Tool, ToolContext, open_session
from agentlane.models.anthropic import AnthropicModel
from tests.wire.anthropic_format import answer, text, thinking, tool
from tests.wire.server import sse

THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def own_model(client: AsyncAnthropic) -> Model:
    """The adapter's model."""
    return AnthropicModel("claude-test", client=client)


def agent(
    client: AsyncAnthropic,
    begun: Callable[[str], bool],
    make_model: Callable[[AsyncAnthropic], Model] = own_model,
    settings: Mapping[str, object] = THINKING,
) -> Agent:
    """The agent of every life. ``begun`` is told of each start of a tool, and says whether it is to come to its end."""

    def make(name: str, replay: str) -> Tool:
        async def run(arguments: dict[str, str], ctx: ToolContext) -> str:
            if not begun(f"{name}:{arguments['what']} {ctx.attempt}"):
                await asyncio.Event().wait()
            return f"{name} {arguments['what']} done"

        return Tool(name, run, replay=replay)  # type: ignore[arg-type]

    return Agent(
        model=make_model(client),
        tools=[make("look", "safe"), make("change", "never")],
        instructions="Work.",
        settings=settings,
        retry=RetryPolicy(attempts=3, base_ms=0),
    )


def client_at(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(api_key="key", base_url=url, http_client=DefaultAsyncHttpxClient(base_url=url, verify=False))


async def live(url: str, target: str, ends: bool, made: Callable[..., Agent]) -> None:
    """Go on with what is open, or begin."""

    def begun(what: str) -> bool:
        tell(f"begun {what}")
        return ends

    async with client_at(url) as client, open_session(target, durability="process") as session:
        lane = await session.lane("main", made(client, begun))
        try:
            await lane.drive()
        except NoActiveOperation:
            await lane.accept(Prompt("go"))
            await lane.drive()


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def warm_up() -> None:
    """Run once, of nobody, to the end: what is made at the first request and the first run is made for all children."""
    answers = [answer(thinking("a"), text("b"), tool("look", {"what": "c"}, id="d")), answer(text("e"))]
    data = [sse(*events, named=True) for events in answers]
    head = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=head, content=data.pop(0)))
    async with AsyncAnthropic(api_key="key", http_client=httpx2.AsyncClient(transport=transport)) as client:
        async with open_session(":memory:") as session:
            lane = await session.lane("main", agent(client, lambda _: True))
            result = await lane.run("go")
            assert result.text == "e", result


def main(made: Callable[..., Agent] = agent) -> None:
    asyncio.run(warm_up())
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            tell(f"pid {os.getpid()}")
            try:
                asyncio.run(live(job["url"], job["target"], job["ends"], made))
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        tell(f"end {status}")


if __name__ == "__main__":
    main()
