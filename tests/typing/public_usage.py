"""What an application writes, checked by mypy in strict mode: what users rely on is asserted, wrong uses are refused.

It is never run. Each ``type: ignore`` is a claim that the line is an error of that kind: mypy reports one that is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never, assert_type

from msgspec import Struct

from agentlane import (
    AbortReceipt,
    Admitted,
    AfterResponse,
    AfterTool,
    Agent,
    AgentLane,
    AgentLaneError,
    AssistantMessage,
    BeforeCompaction,
    BeforeFinish,
    BeforeRun,
    BeforeTool,
    Block,
    BranchSummary,
    CallRecord,
    ChildReason,
    Compact,
    Compaction,
    CompactionPolicy,
    Custom,
    Decision,
    Decline,
    Entry,
    ExternalReason,
    Hook,
    ImagePart,
    LaneBusy,
    LaneInspection,
    ListAddress,
    Message,
    Model,
    ModelError,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    Navigate,
    Operation,
    OperationResult,
    PartDelta,
    PartStart,
    Prompt,
    QuestionReason,
    RetryPolicy,
    RetryReason,
    RetryTool,
    RunInfo,
    Session,
    Settled,
    Skill,
    SkillDefinition,
    StreamItem,
    SummaryText,
    Template,
    TemplateDefinition,
    TextPart,
    Tool,
    ToolContext,
    ToolResult,
    ToolResultMessage,
    TransformContext,
    Usage,
    UserMessage,
    ValueAddress,
    Waiting,
    accept,
    drive,
    hook,
    open_session,
    request_abort,
    requestAbort,
    tool,
    tool_method,
    tools_of,
)
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore, Store
from agentlane.testing import FaultPlan, ScriptedModel, answer, call, fail, hang, say
from agentlane.tools.workspace import Workspace, WorkspaceLimits


@dataclass
class Deps:
    """What this application's tools need."""

    root: str


class Plan(Struct):
    title: str


# Tools.


@tool
async def plain(x: int) -> str:
    """Without options."""
    return str(x)


@tool(replay="idempotent", parallel=False, timeout_ms=1_000)
async def charge(cents: int, ctx: ToolContext[Deps]) -> ToolResult:
    """With options and a context."""
    assert_type(ctx.deps, Deps)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.recovered, bool)
    await ctx.progress(f"charging in {ctx.deps.root}")
    await ctx.set_memo("asked", True)
    if ctx.cancelled:
        raise RetryTool("again")
    return ToolResult(content="charged", details={"cents": cents}, terminate=True)


@tool(name="look", replay="safe")
def look_up(name: str) -> dict[str, int]:
    """A plain function that returns JSON data."""
    return {name: 1}


async def tools_are_still_functions(ctx: ToolContext[Deps]) -> None:
    assert_type(await plain(3), str)
    assert_type(look_up("a"), dict[str, int])
    assert_type(await charge(cents=3, ctx=ctx), ToolResult)
    await plain("three")  # type: ignore[arg-type]
    look_up()  # type: ignore[call-arg]


class Basket:
    @tool_method
    def put(self, item: str) -> int:
        return len(item)

    @tool_method(replay="safe", name="listed")
    async def contents(self) -> list[str]:
        return []


async def marked_methods_are_still_methods(basket: Basket) -> None:
    assert_type(basket.put("a"), int)
    assert_type(await basket.contents(), list[str])
    basket.put(5)  # type: ignore[arg-type]
    Agent(model=EchoModel(), tools=[*tools_of(basket), *Workspace(".", limits=WorkspaceLimits()).tools()])


@tool(replay="often")  # type: ignore[call-overload, untyped-decorator]
async def wrong_policy() -> str:
    return ""


by_hand: Tool[Any, Any] = Tool("by_hand", lambda arguments, ctx: "ok", parameters={"type": "object"}, replay="safe")


# A model.


class EchoModel:
    """An adapter by the protocol, without a base class."""

    identity = ModelIdentity(provider="echo", name="echo-1")
    limits = ModelLimits(context_tokens=1_000)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        if not request.messages:
            raise ModelError("nothing to echo", retryable=True, retry_after_ms=100, sent=False)
        yield PartStart(index=0, kind="text")
        yield PartDelta(index=0, text="echo")
        yield AssistantMessage(
            content=(TextPart(text="echo"),), stop_reason="stop", usage=Usage(input_tokens=1, output_tokens=1)
        )


class NoModel:
    """Not a model: it has no identity."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        yield AssistantMessage(content=(), stop_reason="stop")


model: Model = EchoModel()


# Agents.


async def instructions(info: RunInfo[Any]) -> str:
    return f"You are in {info.lane}."


agent = Agent(
    "teller",
    model=model,
    models=[ScriptedModel(["hi"])],
    tools=[plain, charge, look_up, by_hand],
    instructions=instructions,
    settings={"temperature": 0},
    deps=Deps(root="here"),
    retry=RetryPolicy(attempts=5),
    max_parallel=2,
)
assert_type(agent, Agent[Deps, str])
annotated: Agent[Deps] = agent
bare = Agent(model=ScriptedModel([[say("a"), call("plain", x=1)], answer("b"), fail("overloaded"), hang()]))
Agent(model=NoModel())  # type: ignore[arg-type]
Agent(model=[EchoModel(), ScriptedModel(["b"])], max_turns=20, max_time_ms=60_000)
Agent(model="openai:gpt-5", models=["openai-chat:qwen3", EchoModel()])
planner = Agent(model=EchoModel(), output=Plan, max_output_retries=1)
assert_type(planner, Agent[Any, Plan])
Agent(model=EchoModel(), output="Plan")  # type: ignore[arg-type]
Agent(model=[NoModel()])  # type: ignore[list-item]
Agent("x", EchoModel())  # type: ignore[call-arg]
Agent(model=EchoModel(), tools=[len])  # type: ignore[list-item]


# Sessions and lanes.


async def work() -> None:
    async with open_session("work.db", durability="process", metadata={"a": 1}) as session:
        assert_type(session, Session)
        lane = await session.lane("main", agent)
        assert_type(lane, AgentLane[Deps, str])
        assert_type(lane.agent.deps, Deps)

        admitted = await lane.accept(Prompt("hello", images=(ImagePart(data="", mime_type="image/png"),)))
        assert_type(admitted, Admitted)
        outcome = await lane.drive(admitted.operation_id, wait_for_retry=False)
        match outcome:
            case Settled(result):
                assert_type(result, OperationResult)
                assert_type(result.text, str)
                if result.status == "finished":  # type: ignore[comparison-overlap]
                    print("no such status")
            case Waiting(reasons=reasons, wake_at=wake_at):
                assert_type(wake_at, int | None)
                for reason in reasons:
                    if isinstance(reason, RetryReason):
                        assert_type(reason.not_before, int)
                    elif isinstance(reason, ChildReason):
                        assert_type(reason.operation_id, str)
                    elif isinstance(reason, ExternalReason):
                        await lane.deliver(reason.call_id, {"rows": 3})
                    elif isinstance(reason, QuestionReason):
                        assert_type(await lane.answer(reason.question_id, ["yes"], by="me"), Decision)
                    else:
                        assert_type(reason.expires_at, int | None)
                        assert_type(await lane.decide(reason.approval_id, allow=True, by="me"), Decision)
            case _:
                assert_never(outcome)

        assert_type(await lane.run("and again"), OperationResult)
        assert_type(await lane.resume(), OperationResult | None)
        assert_type(await lane.request_abort("op"), AbortReceipt)
        assert_type(lane.inspect(), LaneInspection)
        if (operation := lane.inspect().operation) is not None:
            assert_type(operation, Operation)
            assert_type(operation.calls, tuple[CallRecord, ...])
        assert_type(lane.output(await lane.run("text")), str)
        planning = await session.lane("plan", planner)
        assert_type(planning, AgentLane[Any, Plan])
        assert_type(planning.output(await planning.run("plan")), Plan)
        assert_type(await lane.run("with", deps=Deps("/other")), OperationResult)
        await lane.run("with", deps="/other")  # type: ignore[arg-type]
        assert_type(await lane.retry("op", same_keys=True, operation_id="again"), Admitted)
        await lane.wait_idle()
        assert_type(await lane.run_when_idle(lane.messages), list[Message])
        await lane.run_when_idle(lane.inspect)  # type: ignore[arg-type]
        await lane.configure(model=["echo:echo-1", EchoModel()])
        await lane.configure(model="echo:echo-1", tools=["plain"], settings={"temperature": 1})
        await lane.accept("hello")  # type: ignore[arg-type]
        await lane.drive("op", True)  # type: ignore[call-arg]

    later = await open_session(MemoryStore(), probe=FaultPlan())
    await later.close()


async def verbs(lane: AgentLane[Deps]) -> None:
    assert_type(await accept(lane, Prompt("x"), operation_id="op"), Admitted)
    assert_type(await drive(lane, "op"), Settled | Waiting)
    assert_type(await request_abort(lane, "op"), AbortReceipt)
    assert_type(await requestAbort(lane, "op"), AbortReceipt)


async def skills_and_templates(lane: AgentLane[Any]) -> None:
    made = Agent(model=EchoModel(), skills="skills", templates=[Path("templates"), "more/ask.md"])
    assert_type(made.skills, Mapping[str, SkillDefinition])
    assert_type(made.templates["ask"], TemplateDefinition)
    assert_type(made.expand(Template("ask", ["Ada"], {"how": "well"})), UserMessage)
    assert_type(await lane.accept(Skill("pdf", "page 2")), Admitted)
    assert_type(await lane.run(Template("ask", ("Ada",)), operation_id="op"), OperationResult)
    made.expand(Prompt("x"))  # type: ignore[arg-type]
    Agent(model=EchoModel(), skills=3)  # type: ignore[arg-type]


async def errors(lane: AgentLane[Any]) -> None:
    try:
        await lane.accept(Prompt("x"))
    except LaneBusy as error:
        assert_type(error.code, str)
        print(error.details["operation_id"])
    except AgentLaneError as error:
        print(error.code)


def words(message: Message) -> int:
    return len(str(message).split())


def shown(data: Any) -> str | None:
    return data if isinstance(data, str) else None


def long_conversations(model: Model) -> Agent[None, str]:
    Agent(model=model, compaction=True)  # type: ignore[arg-type]
    Agent(model=model, token_counter=shown)  # type: ignore[arg-type]
    policy = CompactionPolicy(context_tokens=100_000, keep_tokens=5_000)
    return Agent(model=model, compaction=policy, token_counter=words, projectors={"note": shown})


async def summarize(lane: AgentLane[Any]) -> None:
    result = await lane.compact(instructions="keep the names", keep_tokens=1_000)
    assert_type(result, OperationResult)
    assert_type(result.summary, str | None)
    assert_type(await lane.run(Compact()), OperationResult)
    moved = await lane.navigate("an id", summarize=True)
    assert_type(moved.summary, str | None)
    assert_type(await lane.accept(Navigate(None, summarize=True)), Admitted)
    await lane.accept(Compact(keep_tokens="few"))  # type: ignore[arg-type]


# Reading.


async def read(session: Session) -> None:
    branch = session.branch("main")
    assert_type(await branch.messages(), list[Message])
    entries = await branch.entries(newest_first=False, limit=10, types=["user", "custom"])
    assert_type(entries, list[Entry])
    await branch.entries(types=["system"])  # type: ignore[list-item]
    for entry in entries:
        match entry.body:
            case UserMessage(content=content):
                print(content)
            case AssistantMessage() as message:
                assert_type(message.text, str)
            case ToolResultMessage() as message:
                assert_type(message.is_error, bool)
            case Custom(type=kind, data=data):
                print(kind, data)
            case Compaction(summary=summary, kept_from=kept_from):
                print(summary, kept_from)
            case BranchSummary(summary=summary, left=left):
                print(summary, left)
            case _:
                assert_never(entry.body)
    assert_type(session.stats().usage.unknown_rows, int)


# Values.


async def values(session: Session) -> None:
    plan = ValueAddress("app.plan", "current", Plan)
    seen = ListAddress("app.seen", "files", str)
    await session.set_value(plan, Plan("tidy"))
    await session.set_value(plan, "tidy")  # type: ignore[misc]
    assert_type(await session.value(plan), Plan | None)
    assert_type(await session.value(plan, Plan("none")), Plan)
    assert_type(await session.append(seen, "a.txt"), int)
    assert_type(await session.elements(seen), list[tuple[int, str]])
    assert_type(await session.values("app.plan", Plan), dict[str, Plan])


# Stores.


async def stores() -> None:
    store: Store = SqliteStore("work.db")
    store = JsonlStore("folder", durability="process")
    for info in await store.list():
        assert_type(info.id, str)
    for each in await store.open_operations():
        assert_type(each.session_id, str)
    JsonlStore("folder", durability="memory")  # type: ignore[arg-type]


def only_mine(info: BeforeTool[Deps]) -> Block | dict[str, str] | None:
    assert_type(info.deps, Deps)
    assert_type(info.arguments, dict[str, Any])
    return Block("not yours") if info.recovered else {"path": "mine"}


async def mask(info: AfterTool[Deps]) -> ToolResult | None:
    assert_type(info.result, ToolResultMessage)
    return ToolResult(content="masked") if info.terminate else None


async def polish(info: AfterResponse[Deps]) -> AssistantMessage | None:
    return info.message if info.attempt > 1 else None


def brief(info: TransformContext[Deps]) -> list[Message]:
    assert_type(info.messages, tuple[Message, ...])
    return list(info.messages[-2:])


def go_on(info: BeforeFinish[Deps]) -> str | None:
    return None if info.follow_ups else "and now?"


async def my_summary(info: BeforeCompaction[Deps]) -> SummaryText | Decline | None:
    assert_type(info.messages, tuple[Message, ...])
    if info.reason == "overflow" or info.earlier is None:
        return None
    return SummaryText("all is well") if info.messages else Decline("nothing was said")


async def allowed(info: BeforeRun[Deps]) -> None:
    if not info.inputs:
        raise LookupError("nothing to do")


assert_type(hook("before_tool", only_mine), Hook)
hook("before_run", allowed)
hook("before_request", lambda info: {**info.settings, "attempt": info.attempt})
hook("transform_context", brief)
hook("after_response", polish, on_error="block")
hook("before_finish", go_on)
hook("before_finish", brief)  # type: ignore[call-overload]
hook("before_run", polish)  # type: ignore[call-overload]
hook("after_tool", mask, on_error="block")
hook("before_tool", lambda info: None)
hook("before_compaction", my_summary)
hook("before_compaction", go_on)  # type: ignore[call-overload]
hook("before_compaction", brief)  # type: ignore[call-overload]
hook("after_tool", only_mine)  # type: ignore[call-overload]
hook("before_tool", mask)  # type: ignore[call-overload]
hook("sometimes", mask)  # type: ignore[call-overload]
