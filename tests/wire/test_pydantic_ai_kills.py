"""Claim: a process that is killed while a model of pydantic-ai's streams or a tool runs leaves a session from which the
next one makes requests that the provider takes, and in which no call runs twice that must not. Real ``kill -9``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("anthropic")
pytest.importorskip("openai")

from agentlane import AssistantMessage, open_session
from agentlane.testing import check_invariants
from tests.wire import pydantic_ai_life
from tests.wire.anthropic_format import answer, redacted, reply, text, thinking, tool
from tests.wire.anthropic_life import client_at
from tests.wire.anthropic_rules import Provider
from tests.wire.lives import Lives, results

DISKS = {"jsonl": "s.jsonl", "sqlite": "s.db"}
ASKED = answer(
    thinking("let me", " look", signature="signed-1", cut=False),
    redacted("hidden-1"),
    text("I look", " 😀"),
    tool("look", {"what": "a"}, id="toolu_1"),
    tool("change", {"what": "b"}, id="toolu_2"),
    tool("look", {"what": "c"}, id=""),
)
DONE = answer(thinking("so", signature="signed-2", cut=False), text("do", "ne"))


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    found = Lives(pydantic_ai_life.__file__)
    yield found
    found.close()


async def finish(provider: Provider, target: Path) -> tuple[str, list[str], list[str | None]]:
    """Go on in this process: the text at the end, the tools that began, the codes of the answers that failed."""
    began: list[str] = []

    def begun(what: str) -> bool:
        began.append(what)
        return True

    async with client_at(provider.url) as client, open_session(target, create=False) as session:
        lane = await session.lane("main", pydantic_ai_life.agent(client, begun))
        await lane.drive()
        assert await check_invariants(session) == []
        answers = [m for m in await lane.messages() if isinstance(m, AssistantMessage)]
        await lane.run("and more")
        assert await check_invariants(session) == []
    return answers[-1].text, began, [m.error.code for m in answers if m.error]


# Behind how many events of an answer to kill: inside its reasoning, its text, its calls, and before its last event.
PLACES = {"jsonl": (4, len(ASKED) - 1), "sqlite": (9, 17)}


@pytest.mark.parametrize("disk", DISKS)
async def test_killed_in_the_middle_of_an_answer(disk: str, lives: Lives, tmp_path: Path) -> None:
    for shown in PLACES[disk]:
        folder = tmp_path / str(shown)
        folder.mkdir()
        target = folder / DISKS[disk]
        with Provider(reply(ASKED[:shown], end="hang"), ASKED, DONE, answer(text("more"))) as provider:
            lives.begin(provider, target)
            provider.server.hanging()
            assert lives.kill() == []

            said, began, failed = await finish(provider, target)

            provider.require_kept()
        assert (said, failed) == ("done", ["interrupted"])
        assert sorted(began) == ["change:b 1", "look:a 1", "look:c 1"]
        assert [text[-4:] for text in results(provider)] == ["done"] * 3
        # Nothing of the answer that was lost is in what is sent: one user turn, and the next attempt.
        assert [turn["role"] for turn in provider.bodies[2]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.parametrize("disk", DISKS)
async def test_killed_while_tools_run(disk: str, lives: Lives, tmp_path: Path) -> None:
    target = tmp_path / DISKS[disk]
    with Provider(ASKED, DONE, answer(text("more"))) as provider:
        lives.begin(provider, target, ends=False)
        assert sorted(lives.begun(3)) == ["change:b 1", "look:a 1", "look:c 1"]
        lives.kill()

        said, began, failed = await finish(provider, target)

        provider.require_kept()
    assert (said, failed) == ("done", [])
    assert began == ["look:a 2", "look:c 2"]  # the one that may not run twice did not
    told = results(provider)
    assert [text[-4:] for text in (told[0], told[2])] == ["done"] * 2
    assert "Check before doing it again" in told[1]
    kinds = [block["type"] for block in provider.bodies[-1]["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use", "tool_use"]
