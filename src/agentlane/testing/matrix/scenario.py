"""What is put under the matrix: an agent, what a process does with it, and what must be true of the world then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from agentlane.agent import Agent
from agentlane.data.requests import Prompt
from agentlane.testing.matrix.history import History, Life, W

Act: TypeAlias = Callable[[Life[W]], Awaitable[Any]]
"""What a process does after it has opened the session."""


def no_world() -> Any:
    """The world of a scenario that has none of its own."""
    return None


@dataclass(frozen=True)
class Scenario(Generic[W]):
    """One thing to stop at every boundary.

    - ``agent`` makes the agent of one process, anew for each: ``life.number`` says which process it is, so that a later
      one may have other tools; ``life.world`` is the world that its tools do their effects to. Its model has to go on
      from the conversation that it is shown, as ``ScriptedModel`` does.
    - ``prompt``: one text or several, accepted and driven one after the other.
    - ``act`` is what a process does instead. The same act is done again after each stop, so it must be safe to repeat,
      as ``accept`` with an operation id is. Whatever it raises fails the history, but for what a stop causes.
    - ``world`` makes a fresh world for each history. If it has a method ``fingerprint()``, equal for two worlds that
      hold the same, then histories in memory that leave the same behind, in the store, in the world and of effects,
      share one ending: what goes on from there is played once. Without that method each is played to its end.
    - ``check`` is called with each history that has come to its end, one without any stop among them, and raises if the
      world is not what it should be then. It may be async.
    - ``steady`` says that the model gives the same answers whatever the results of its calls say, as a script does, and
      that a tool gives the same result each time. Then the answers of each history are compared with those of the run
      without stops, and the results with those of one recovery.
    """

    name: str
    agent: Callable[[Life[W]], Agent[Any, Any]]
    prompt: str | Sequence[str] = "go"
    act: Act[W] | None = None
    world: Callable[[], W] = no_world
    check: Callable[[History[W]], object] | None = None
    steady: bool = True

    async def run(self, life: Life[W]) -> None:
        """What a process does: ``act``, or the prompts."""
        if self.act is not None:
            await self.act(life)
            return
        lane = await life.lane()
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        for number, text in enumerate(prompts, start=1):
            admitted = await lane.accept(Prompt(text), operation_id=f"op-{number}")
            await life.drive(lane, admitted.operation_id)
