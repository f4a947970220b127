"""The work that is killed: what the model says, which tools there are, what each effect leaves outside of the store."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane import Agent, AgentTool, PendingResult, RetryPolicy, Tool, ToolContext, agent_tool, hook
from agentlane.clock import Clock
from agentlane.data.operations import ReplayPolicy
from agentlane.machine.outcomes import DENIED
from agentlane.model import ModelLimits
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import Answer, ScriptedCall, as_answer, call, fail, say, think

POLICIES: dict[str, ReplayPolicy] = {
    "read": "safe",
    "put": "idempotent",
    "run": "never",
    "alone": "never",
    "block": "safe",
    "once": "never",
    "steps": "safe",
    "wait": "never",
    "watch": "safe",
    "ask": "never",
    "check": "ask",
    "later": "never",
}
"""The tools. ``alone`` is a barrier; ``block`` and ``once`` are plain functions; ``steps`` keeps a memo; ``wait`` and
``watch`` do not end by themselves when they run for the first time; ``ask`` needs a yes, ``check`` to run again does;
the result of ``later`` is delivered by the host."""

PLAIN = frozenset({"block", "once"})
WAITING = frozenset({"wait", "watch"})
HELPER = "scout"
"""The agent that is a tool of another one."""
REFUSAL = "not this one"
HEARD = "the bird too"
SURE = "are you sure"
"""What a hook says once the model has ended with ``HEARD``."""
TURNS_MAX = 12
"""How many turns of the loop a tool takes at most."""


SayKind: TypeAlias = Literal["steer", "submit", "follow_up", "hook"]


class Turn(NamedTuple):
    """A prompt and what the model says to it, and what the host, or a hook, says besides and is answered."""

    prompt: str
    answers: Sequence[Any]
    besides: Sequence[tuple[SayKind, str, Sequence[Any]]] = ()
    summary: bool = False
    """Whether what was before is summarized behind the prompt."""

    def said(self) -> list[tuple[str, Sequence[Any]]]:
        """Every user message in order, each with the answers behind it."""
        return [(self.prompt, self.answers), *((text, answers) for _, text, answers in self.besides)]


@dataclass(frozen=True)
class Work:
    """What every process of a history does: each lane's prompts in order, all lanes at once.

    ``aborts``: the first operation is aborted once every tool that waits has begun. ``delta_ms``: how slow answers are.
    ``window``: how many tokens the model takes; a conversation that grows beyond it is summarized on its way.
    ``helper``: what another agent says, which is a tool of this one's, and whether hooks are asked.
    """

    name: str
    lanes: dict[str, Callable[[], Sequence[Turn]]]
    aborts: int = 0
    delta_ms: int = 0
    helper: Sequence[Any] = ()
    window: int | None = None

    def operations(self) -> list[str]:
        """The ids of all operations."""
        return [f"{lane}-{number}" for lane, turns in self.lanes.items() for number in range(len(turns()))]

    def agent(self, lane: str, outside: Outside, clock: Clock) -> Agent[Any, Any]:
        """The agent of one lane of one process."""
        turns = [answers for turn in self.lanes[lane]() for _, answers in turn.said()]
        limits = None if self.window is None else ModelLimits(context_tokens=self.window)
        model = ScriptedModel(turns=turns, limits=limits, deltas=8, delta_ms=self.delta_ms, clock=clock)
        tools: list[Tool[Any, Any] | AgentTool] = [*outside.tools(lane)]
        hooks = []
        if self.helper:
            says = ScriptedModel(turns=[self.helper], deltas=8, clock=clock)
            tools.append(agent_tool(Agent(HELPER, model=says, tools=outside.tools(HELPER)), description="Ask it."))
            hooks = [
                hook("before_tool", _nothing),
                hook("after_tool", lambda info: None),
                hook("before_finish", lambda info: SURE if info.text == HEARD else None),
            ]
        return Agent(model=model, tools=tools, hooks=hooks, retry=RetryPolicy(base_ms=1, cap_ms=5))


async def _nothing(info: object) -> None:
    """A hook that has nothing against it."""


def _mixed() -> list[Turn]:
    return [
        Turn(
            "look around",
            [
                [
                    think("hm", signature="s"),
                    say("looking"),
                    call("read", x=0),
                    call("read", x=1, progress=True),
                    call("run", x=2, progress=True),
                    call("put", x=3),
                    call("steps", x=4),
                ],
                [call("run", x=5), call("alone", x=6), call("once", x=7), call("block", x=8)],
                "tidy enough " * 120,
            ],
        ),
        # What it shows is too long by now for the model, and is summarized before it is asked.
        Turn(
            "tidy up",
            [fail("overloaded", retryable=True), [call("run", x=9), call("block", x=10)], "done"],
            summary=True,
        ),
    ]


def _stream() -> list[Turn]:
    tale = "once there was a process that was killed again and again"
    return [
        Turn("tell", [[think("which one", signature="s"), say(tale), call("read", x=0)], "and it went on " * 3]),
        Turn("more", [[say("that was all"), call("run", x=1)], "really"]),
    ]


def _abort() -> list[Turn]:
    calls = [call("wait", x=0, progress=True), call("run", x=1), call("watch", x=2), call("alone", x=3)]
    return [Turn("go", [calls, "went on"]), Turn("and now", [[call("run", x=4)], "after"])]


def _host() -> list[Turn]:
    calls = [call("ask", x=0), call("ask", x=1), call("check", x=2), call("later", x=3), call(HELPER, prompt="look")]
    return [
        Turn(
            "go",
            [],
            [
                ("steer", "mind the cat", []),
                ("submit", "and the dog", [calls, [call("run", x=4)], "minded"]),
                ("follow_up", "and the bird", [HEARD]),
                ("hook", SURE, ["sure"]),
            ],
        ),
        Turn("more", [[call("ask", x=6)], "that is all"]),
    ]


_HELPER = [[call("run", x=7), call("ask", x=8)], "seen"]


def _lane(number: int) -> Callable[[], list[Turn]]:
    calls = [call("run", x=number), call("read", x=number), call("once", x=number)]
    return lambda: [Turn(f"go {number}", [calls, f"gone {number}"])]


WORKS = {
    each.name: each
    for each in [
        Work("mixed", {"main": _mixed}, window=2_500),
        Work("stream", {"main": _stream}, delta_ms=40),
        Work("abort", {"main": _abort}, aborts=2),
        Work("lanes", {f"lane-{number}": _lane(number) for number in range(3)}),
        Work("host", {"main": _host}, helper=_HELPER),
    ]
}


class Outside:
    """The world outside of the store: a line before and a line after each effect, in a file that outlives everyone."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._path = str(folder / "effects.log")
        self._chance = chance
        self._waiting = 0
        self._watched: asyncio.Future[None] | None = None
        self._wanted = 0

    async def waiting(self, count: int) -> None:
        """Return once ``count`` tools wait."""
        self._wanted = count
        self._watched = asyncio.get_running_loop().create_future()
        await self._watched

    def tools(self, lane: str) -> list[Tool[Any, Any]]:
        """The tools of one lane of one process."""
        return [self._tool(lane, name) for name in POLICIES]

    def _tool(self, lane: str, name: str) -> Tool[Any, Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str | PendingResult:
            label = f"{lane}/{name}:{arguments['x']}"
            self._note("start", label, ctx)
            if arguments.get("progress"):
                await ctx.progress("half")
            if name == "steps" and await ctx.memo("step") is None:
                await ctx.set_memo("step", 1)
            if name in WAITING and ctx.attempt == 1:
                await self._hang()
            for _ in range(self._chance.randrange(TURNS_MAX)):
                await asyncio.sleep(0)
            self._note("end", label, ctx)
            return PendingResult() if name == "later" else done(label, ctx.attempt)

        def block(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
            label = f"{lane}/{name}:{arguments['x']}"
            self._note("start", label, ctx)
            self._note("end", label, ctx)
            return done(label, ctx.attempt)

        function = block if name in PLAIN else run
        return Tool(name, function, replay=POLICIES[name], parallel=name != "alone", approval=name == "ask")

    async def _hang(self) -> None:
        self._waiting += 1
        if self._watched is not None and self._waiting >= self._wanted and not self._watched.done():
            self._watched.set_result(None)
        await asyncio.get_running_loop().create_future()

    def _note(self, what: str, label: str, ctx: ToolContext[Any]) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{what} {label} {ctx.attempt} {ctx.call_id} {ctx.idempotency_key}\n".encode())
        finally:
            os.close(descriptor)


def done(label: str, attempt: int) -> str:
    """What a tool returns: its result says which of its starts it is of."""
    return f"{label} done by start {attempt}"


class Expected(NamedTuple):
    """A message of the conversation without any interruption: its line, or the label of a call whose result it is."""

    line: str
    label: str | None = None


def expected(work: Work, lane: str) -> list[list[Expected]]:
    """For each operation of a lane, what it adds to the conversation when nobody stops it."""
    found = []
    for turn in work.lanes[lane]():
        lines = []
        for text, answers in turn.said():
            lines += [Expected(f"user {text}"), *([Expected("Compaction")] if turn.summary else [])]
            lines += _answered(lane, answers)
        found.append(lines)
    return found


def expected_of_helper(work: Work) -> list[Expected]:
    """What an agent that is a tool adds to its own conversation."""
    return [Expected("user look"), *_answered(HELPER, work.helper)]


def allows(x: int) -> bool:
    """What the host says to a call of ``ask``."""
    return x % 2 == 0


def _answered(lane: str, answers: Sequence[Any]) -> Iterator[Expected]:
    for answer in map(as_answer, answers):
        if answer.kept:
            yield Expected(f"assistant {_text(answer)}")
            yield from (_result(lane, part) for part in answer.parts if isinstance(part, ScriptedCall))


def _result(lane: str, given: ScriptedCall) -> Expected:
    if given.name == HELPER:
        return Expected("result seen")
    x = (given.arguments or {})["x"]
    if given.name == "ask" and not allows(x):
        return Expected(f"result {DENIED} Reason: {REFUSAL}")
    return Expected("", f"{lane}/{given.name}:{x}")


def _text(answer: Answer) -> str:
    texts = [part.text for part in answer.parts if type(part) is type(say(""))]
    return "".join(texts)


def policy_of(label: str) -> ReplayPolicy:
    return POLICIES[label.split("/")[1].split(":")[0]]
