"""Claim: what could not be read back is refused where it is defined, on every backend alike, and nothing is written."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from agentlane import Agent, Prompt, RetryPolicy, Settled, Tool, open_session
from agentlane.data.messages import ModelIdentity
from agentlane.data.usage import Usage
from agentlane.errors import InvalidDefinition, InvalidMessage
from agentlane.testing import ScriptedModel
from tests.session.places import Place, agent_of


class Word(str):
    """Text of a class of its own, which JSON encoders refuse."""


class Names(enum.StrEnum):
    MAIN = "main"


def model_named(provider: Any, name: Any) -> ScriptedModel:
    return ScriptedModel(["hi"], identity=ModelIdentity(provider=provider, name=name))


def untyped(**options: Any) -> Callable[[], object]:
    return lambda: agent_of("hi", **options)


@pytest.mark.parametrize(
    ("define", "said"),
    [
        *(
            (untyped(retry=RetryPolicy(**{key: value})), f"retry.{key}={value!r}")
            for key in ("attempts", "base_ms", "cap_ms")
            for value in (0.5, True, "1", -500, 2**70, None)
        ),
        (untyped(retry={"attempts": 3}), "RetryPolicy"),
        (untyped(retry=0), "RetryPolicy"),
        (untyped(max_result_bytes=2**70), "max_result_bytes"),
        (untyped(cancel_grace_ms=2**70), "cancel_grace_ms"),
        (untyped(max_restarts=1.0), "max_restarts"),
        (untyped(instructions=5), "instructions=5"),
        (untyped(instructions=None), "instructions=None"),
        (untyped(tools=5), "tools=5"),
        (untyped(models=5), "models=5"),
        (untyped(model=model_named(5, "m")), "identity.provider=5"),
        (untyped(model=model_named("p", None)), "identity.name=None"),
        (untyped(model=model_named("\ud800", "m")), r"identity.provider='\ud800'"),
        (untyped(model=model_named("p", Word("m"))), "identity.name='m'"),
        (untyped(models=[model_named("p", 5)]), "identity.name=5"),
        (lambda: Tool("x", 5), "function=5"),  # type: ignore[arg-type]
        (lambda: Tool("x", None), "function=None"),  # type: ignore[arg-type]
        (lambda: Tool("x", print, validate=5), "validate=5"),  # type: ignore[arg-type]
        (lambda: Tool("x", print, timeout_ms=2**70), "timeout_ms"),
        (lambda: Tool("x", print, max_result_bytes=2**70), "max_result_bytes"),
    ],
)
def test_a_definition_of_a_wrong_type_or_out_of_bounds_names_what_is_wrong(
    define: Callable[[], object], said: str
) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        define()

    assert said in str(caught.value)


async def test_names_of_a_text_class_of_their_own_are_plain_text_from_there_on(place: Place) -> None:
    session = await place.open()
    ran: list[Any] = []
    built = Tool(Word("note"), lambda arguments, context: ran.append(arguments))
    agent = Agent(Word("bob"), model=ScriptedModel(["hi", "again"]), tools=[built])

    lane = await session.lane(Names.MAIN, agent)
    admitted = await lane.accept(Prompt("x"), operation_id=Word("op-1"))
    await session.create_branch(Word("side"), at=Word(admitted.inputs[0]))
    second = await session.lane(Word("second"), agent, at=Word(admitted.inputs[0]))
    await lane.configure(tools=[Word("note")])
    await lane.record_usage(Usage(), operation_id=Word("op-1"), entry_id=Word(lane.tip() or ""))
    await second.append_custom(Word("mark"), {})
    outcome = await lane.drive(Word("op-1"))

    assert isinstance(outcome, Settled) and outcome.result.status == "completed"
    texts = [built.name, agent.name, lane.name, second.name, admitted.operation_id, *session.branches()]
    assert [type(text) for text in texts] == [str] * len(texts)
    await session.close()
    again = await place.open()
    assert again.branches() == ["main", "second", "side"]


@pytest.mark.parametrize("metadata", [5, 0, [], [1], [("a", 1)], "x", "", True, False, {"a": object()}])
@pytest.mark.parametrize("target", ["a.db", "one.jsonl", "folder", "memory"])
async def test_metadata_that_is_no_object_makes_no_session(place: Place, target: str, metadata: Any) -> None:
    where = place.store if target == "memory" else place.folder / target

    with pytest.raises(InvalidMessage, match="metadata"):
        await open_session(where, metadata=metadata)
    with pytest.raises(InvalidMessage, match="metadata"):
        await place.store.create("s", metadata=metadata)

    assert await place.store.list() == []
    assert list(place.folder.iterdir()) == []
