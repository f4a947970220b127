"""Recipes of ``Branch``, ``AgentLane``, the verbs, and what a running tool may do."""

from __future__ import annotations

from agentlane import (
    Agent,
    ExternalReason,
    Prompt,
    Template,
    TextPart,
    Usage,
    UserMessage,
    Waiting,
    accept,
    drive,
    request_abort,
    requestAbort,
)
from tests.cancellation.recipes import Call, recipe
from tests.cancellation.world import World

HELLO = UserMessage(content=(TextPart(text="hello"),))


@recipe("Branch.entries")
async def entries(world: World) -> Call:
    branch = world.session.branch("main")
    return lambda: branch.entries(limit=1)


@recipe("Branch.messages")
async def messages(world: World) -> Call:
    return world.session.branch("main").messages


@recipe("Branch.append_message")
async def append_message(world: World) -> Call:
    branch = world.session.branch("side")
    return lambda: branch.append_message(HELLO)


@recipe("Branch.append_custom")
async def append_custom(world: World) -> Call:
    branch = world.session.branch("main")
    return lambda: branch.append_custom("note", {"n": 2})


# Work.


@recipe("AgentLane.accept")
async def accept_method(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.accept(Prompt("hello"), operation_id="op")


@recipe("AgentLane.accept", case="once more")
async def accept_again(world: World) -> Call:
    lane = await world.lane()
    await lane.run("hello", operation_id="op")
    return lambda: lane.accept(Prompt("hello"), operation_id="op")


@recipe("AgentLane.accept", case="a template")
async def accept_a_template(world: World) -> Call:
    file = world.folder / "hello.md"
    file.write_text("hello $1")
    lane = await world.session.lane("main", Agent(model=world.talker, templates=[file]))
    return lambda: lane.accept(Template("hello", ["Ada"]), operation_id="op")


@recipe("accept")
async def accept_verb(world: World) -> Call:
    lane = await world.lane()
    return lambda: accept(lane, Prompt("hello"))


@recipe("AgentLane.drive", case="a request")
async def drive_a_request(world: World) -> Call:
    lane = await world.accept("hello")
    return lane.drive


@recipe("AgentLane.drive", case="a call")
async def drive_a_call(world: World) -> Call:
    lane = await world.accept("call save")
    return lambda: lane.drive("op")


@recipe("AgentLane.drive", case="joined")
async def drive_joined(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()

    async def call() -> None:
        world.let_go.set()
        await lane.drive()

    return call


@recipe("AgentLane.drive", case="through a retry")
async def drive_through_a_retry(world: World) -> Call:
    lane = await world.accept("fail")
    world.move_clock_on()
    return lane.drive


@recipe("AgentLane.drive", case="until a retry")
async def drive_until_a_retry(world: World) -> Call:
    lane = await world.accept("fail")
    return lambda: lane.drive(wait_for_retry=False)


@recipe("AgentLane.drive", case="settled")
async def drive_settled(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.drive("op-first")


@recipe("AgentLane.drive", case="after a reopen")
async def drive_restored(world: World) -> Call:
    await world.in_a_call()
    await world.session.close()
    world.let_go.set()
    await world.reopen()
    lane = await world.lane()
    return lane.drive


@recipe("drive")
async def drive_verb(world: World) -> Call:
    lane = await world.accept("call tell")
    return lambda: drive(lane)


@recipe("AgentLane.request_abort", case="in a request")
async def request_abort_in_a_request(world: World) -> Call:
    lane = await world.drive("hang")
    await world.talker.hanging.wait()
    return lambda: lane.request_abort("op")


@recipe("AgentLane.request_abort", case="settled")
async def request_abort_settled(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.request_abort("op-first")


@recipe("AgentLane.requestAbort")
async def request_abort_alias(world: World) -> Call:
    lane = await world.accept("hello")
    return lambda: lane.requestAbort("op")


@recipe("request_abort")
async def request_abort_verb(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()
    return lambda: request_abort(lane, "op")


@recipe("requestAbort")
async def request_abort_verb_alias(world: World) -> Call:
    lane = await world.accept("hello")
    return lambda: requestAbort(lane, "op")


@recipe("AgentLane.result")
async def result(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.result("op-first")


@recipe("AgentLane.run")
async def run(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.run("call save", operation_id="op")


@recipe("AgentLane.retry")
async def retry(world: World) -> Call:
    lane = await world.lane()
    await lane.run("refuse", operation_id="op")
    return lambda: lane.retry("op", operation_id="again")


@recipe("AgentLane.wait_idle")
async def wait_idle(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()

    async def call() -> None:
        world.let_go.set()
        await lane.wait_idle()

    return call


@recipe("AgentLane.run_when_idle")
async def run_when_idle(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()

    async def call() -> None:
        world.let_go.set()
        await lane.run_when_idle(lambda: lane.run("hello", operation_id="mine"))

    return call


@recipe("AgentLane.resume")
async def resume(world: World) -> Call:
    lane = await world.accept("call tell")
    return lane.resume


@recipe("AgentLane.abort")
async def abort(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()
    return lane.abort


@recipe("AgentLane.configure", case="at rest")
async def configure(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.configure(tools=["tell"], settings={"warm": 1})


@recipe("AgentLane.configure", case="in a call")
async def configure_in_a_call(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()
    return lambda: lane.configure(settings={"warm": 1})


@recipe("AgentLane.decide", case="yes")
async def decide_yes(world: World) -> Call:
    lane = await world.accept("call ask")
    await lane.drive()
    (asked,) = world.session.approvals()
    return lambda: lane.decide(asked.approval_id, allow=True, args={"changed": 1})


@recipe("AgentLane.decide", case="no, while a drive waits")
async def decide_no(world: World) -> Call:
    lane = await world.accept("call ask")
    await lane.drive()
    (asked,) = world.session.approvals()
    world.beside(lane.drive(wait_for_answers=True))
    return lambda: lane.decide(asked.approval_id, allow=False, reason="no")


@recipe("AgentLane.deliver")
async def deliver(world: World) -> Call:
    lane = await world.accept("call later")
    waiting = await lane.drive()
    assert isinstance(waiting, Waiting)
    (reason,) = waiting.reasons
    assert isinstance(reason, ExternalReason)
    return lambda: lane.deliver(reason.call_id, {"rows": 1})


@recipe("AgentLane.answer")
async def answer(world: World) -> Call:
    lane = await world.accept("call question")
    await lane.drive()
    (asked,) = world.session.approvals()
    return lambda: lane.answer(asked.approval_id, {"so": 1}, by="ann")


@recipe("AgentLane.answer", case="while a drive waits")
async def answer_awaited(world: World) -> Call:
    lane = await world.accept("call question")
    await lane.drive()
    (asked,) = world.session.approvals()
    world.beside(lane.drive(wait_for_answers=True))
    return lambda: lane.answer(asked.approval_id, "so")


@recipe("AgentLane.drive", case="until a question")
async def drive_until_a_question(world: World) -> Call:
    lane = await world.accept("call question")
    return lane.drive


@recipe("AgentLane.drive", case="until a result is delivered")
async def drive_until_a_result(world: World) -> Call:
    lane = await world.accept("call later")
    return lane.drive


@recipe("AgentLane.drive", case="until an answer")
async def drive_until_an_answer(world: World) -> Call:
    lane = await world.accept("call ask")
    return lane.drive


@recipe("AgentLane.record_usage")
async def record_usage(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.record_usage(Usage(output_tokens=3))


# The inbox.


@recipe("AgentLane.steer", case="at rest")
async def steer_at_rest(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.steer("hello")


@recipe("AgentLane.steer", case="in a call")
async def steer_in_a_call(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()
    return lambda: lane.steer("hello", request_id="r")


@recipe("AgentLane.follow_up")
async def follow_up(world: World) -> Call:
    lane = await world.accept("hello")
    return lambda: lane.follow_up("hello", request_id="r")


@recipe("AgentLane.next_run")
async def next_run(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.next_run("hello")


@recipe("AgentLane.submit", case="at rest")
async def submit_at_rest(world: World) -> Call:
    lane = await world.lane()
    return lambda: lane.submit("hello", request_id="r")


@recipe("AgentLane.submit", case="in a call")
async def submit_in_a_call(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()
    return lambda: lane.submit("hello")


@recipe("AgentLane.receipt")
async def receipt(world: World) -> Call:
    lane = await world.lane()
    await lane.steer("hello", request_id="r")
    return lambda: lane.receipt("r")


@recipe("AgentLane.cancel_queued", case="waiting")
async def cancel_queued(world: World) -> Call:
    lane = await world.lane()
    queued = await lane.steer("hello", request_id="r")
    return lambda: lane.cancel_queued(queued.id)


@recipe("AgentLane.cancel_queued", case="consumed")
async def cancel_consumed(world: World) -> Call:
    lane = await world.lane()
    queued = await lane.next_run("hello")
    await lane.accept(Prompt("hello"), operation_id="op")
    return lambda: lane.cancel_queued(queued.id)


@recipe("Branch.append_custom", case="in a call")
async def append_in_a_call(world: World) -> Call:
    await world.in_a_call()
    lane = await world.lane()
    return lambda: lane.append_custom("note", {"n": 2})


# Inside a tool.


@recipe("ToolContext.progress")
async def progress(world: World) -> Call:
    context = await world.in_a_call()
    return lambda: context.progress("half way")


@recipe("ToolContext.progress", case="soon after another")
async def second_progress(world: World) -> Call:
    context = await world.in_a_call()
    await context.progress("begun")
    return lambda: context.progress("half way")


@recipe("ToolContext.set_memo")
async def set_memo(world: World) -> Call:
    context = await world.in_a_call()
    return lambda: context.set_memo("new", 1)


@recipe("ToolContext.ask", case="answered")
async def ask(world: World) -> Call:
    lane = await world.accept("call answered")
    await lane.drive()
    (asked,) = world.session.approvals()
    await lane.answer(asked.approval_id, "so")
    world.beside(lane.drive())
    await world.called.wait()
    return lambda: world.contexts[-1].ask("q", "What?")


@recipe("ToolContext.memo")
async def memo(world: World) -> Call:
    context = await world.in_a_call()
    await context.set_memo("given", 1)
    return lambda: context.memo("given")
