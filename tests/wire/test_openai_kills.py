"""Claim: killed in a stream or in a tool, a lane goes on with a request that is accepted, and nothing runs twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

from agentlane import open_session
from tests.wire.openai_apis import APIS, Api
from tests.wire.openai_life import PLACES, TARGETS, Place, agents
from tests.wire.server import Received, Reply, WireServer

ROOT = Path(__file__).parents[2]
BY_PATH = {"/v1/responses": APIS[0], "/v1/chat/completions": APIS[1]}
IDS = {"responses": ("call_1", "call_1"), "chat": ("", "")}


class Provider:
    """Answers each lane by what it was asked: first with what it is killed in, then with how often it was asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.breaches: list[str] = []

    def __call__(self, received: Received) -> Reply:
        api, body = BY_PATH[received.path], received.body
        text = json.dumps(body)
        place = next(place for place in PLACES if place.prompt in text)
        self.breaches += [f"{place.prompt} {self.asked[place.prompt]}: {breach}" for breach in api.breaches(body)]
        self.asked[place.prompt] += 1
        if self.asked[place.prompt] > 1:
            return api.reply(f"answer {self.asked[place.prompt]}", thought="hm")
        return self._first(api, place)

    def _first(self, api: Api, place: Place) -> Reply:
        arguments = json.dumps({"prompt": place.prompt})
        calls = [(id, name, arguments) for id, name in zip(IDS[api.name], ("quick", "slow"), strict=True)]
        events = api.events("Let me look", *calls, thought="hm")
        if place.situation == "tool":
            return Reply(pieces=[api.body(events)])
        shown = next(n for n, event in enumerate(events) if '"Let"' in json.dumps(event))
        return api.broken(events, shown + 1, "hang")


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def test_each_lane_goes_on_where_it_was_killed(provider: Provider, tmp_path: Path) -> None:
    with WireServer(provider) as server:
        killed(tmp_path, server.url)
        first = dict(provider.asked)
        made = agents(tmp_path, server.url)
        for target in TARGETS:
            async with open_session(tmp_path / target) as session:
                for place in [place for place in PLACES if place.target == target]:
                    await goes_on(await session.lane(place.lane, made[place.api]), place)
        for agent in made.values():
            await agent.model.aclose()  # type: ignore[attr-defined]

    assert first == {place.prompt: 1 for place in PLACES}
    assert provider.breaches == []
    started = Counter((tmp_path / "effects.log").read_text().splitlines())
    assert started == {
        f"{name} {place.prompt}": 1 for place in PLACES if place.situation == "tool" for name in ("quick", "slow")
    }


async def goes_on(lane: Any, place: Place) -> None:
    result = await lane.resume()
    assert (result.status, result.text) == ("completed", "answer 2"), place
    bodies = [entry.body for entry in await lane.entries(newest_first=False)]
    if place.situation == "stream":
        assert [body.stop_reason for body in bodies[1:]] == ["error", "stop"]
        assert "Let".startswith(bodies[1].text)
        assert not bodies[1].usage, "what the cut answer cost is not known"
        assert result.usage.unknown_rows == 1
    else:
        assert [body.text for body in bodies[2:3]] == ["quick is done"]
        assert bodies[3].is_error and "It may not have started, may have run in part" in bodies[3].text
    again = await lane.run("and once more")
    assert again.text == "answer 3"


def killed(folder: Path, url: str) -> None:
    """Run the program until every lane is in its place, and kill it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])}
    command = [sys.executable, "-m", "tests.wire.openai_life", str(folder), url]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        finally:
            child.kill()
    assert child.returncode == -9
