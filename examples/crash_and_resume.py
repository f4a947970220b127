"""An agent is killed with SIGKILL while its tools run in parallel, and goes on in a new process.

    python examples/crash_and_resume.py [--store sqlite|jsonl] [--keep] [--model provider:name]

The model is a script, or a real one: that of ``--model`` or ``AGENTLANE_MODEL`` (``script`` is the script), or one that
the keys and addresses that are set lead to (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``, ``ANTHROPIC_API_KEY``,
``ANTHROPIC_BASE_URL``). What a real one may use is bounded.

Everything that the second process shows is read from the store. At the end the claims are checked against the store
and against a log of effects that is kept outside of it. The exit code is 1 if one of them does not hold, and 2 if there
was no model to work with.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _claims import OPERATION, Claim, Place, check, check_any, found, kept, made_by
from _folder_tools import TOOLS, Desk
from _models import SCRIPT, NoModel, choose_model, key_for, make_model

import agentlane
from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    CallRecord,
    InvalidDefinition,
    OperationResult,
    Prompt,
    Session,
    Settled,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    open_session,
)

TASK = "Find out where work is accepted and note it in NOTES.md. draft.txt and the stale build folder can go."
INSTRUCTIONS = (
    "You tidy up a folder with your tools, and do all of a task without asking back. "
    "Calls that do not need each other's results you ask for in one answer."
)
REQUESTS_MAX, TOKENS_MAX, RESULT_BYTES_MAX = 12, 200_000, 16_384
"""Bounds of what a run costs."""
HELD = frozenset({"search", "write_file", "delete_folder"})
CHANGING = frozenset({"write_file", "delete_file", "delete_folder"})
WAIT_S_MAX = {True: 60.0, False: 900.0}
"""How long a process may take, with the script and with a real model."""
ANSWERED = frozenset({"limit_reached", "refusal", "content_filter", "length"})
"""Codes of failures in which the model did answer."""


def make_agent(desk: Desk, model: str) -> Agent[Desk]:
    """The agent, the same in each process. Three calls run at once; the others wait for a free slot."""
    return Agent(
        "tidy",
        model=make_model(desk, model),
        tools=TOOLS,
        instructions=INSTRUCTIONS,
        deps=desk,
        max_parallel=3,
        max_turns=REQUESTS_MAX,
        max_requests=REQUESTS_MAX,
        max_tokens=TOKENS_MAX,
        max_result_bytes=RESULT_BYTES_MAX,
    )


# The first process: it works until it is killed.


async def first_process(place: Place, ready: int, model: str) -> None:
    """Accept and drive. When tools are held half way, say so through ``ready`` and wait for the end."""
    hold, enough = (HELD, len(HELD)) if model == SCRIPT else (CHANGING, 1)
    desk = Desk(place.project, place.effects, hold=hold, hold_enough=enough)
    async with open_session(place.store) as session:
        lane = await session.lane("main", make_agent(desk, model))
        admitted = await lane.accept(Prompt(TASK), operation_id=OPERATION)
        print(f"  lane   operation {admitted.operation_id} is accepted: durable, and not started", flush=True)
        driving = asyncio.create_task(lane.drive(admitted.operation_id))
        holding = asyncio.create_task(desk.all_held.wait())
        await asyncio.wait({driving, holding}, return_when=asyncio.FIRST_COMPLETED)
        if not driving.done():
            os.write(ready, b"held")
        await driving
    os.write(ready, b"ended")


# The second process: it shows what is in the store, drives, and shows what came of it.


async def second_process(place: Place, model: str) -> None:
    """Open the store, show what it holds, drive the operation to its end, show the conversation."""
    desk = Desk(place.project, place.effects)
    async with open_session(place.store, create=False) as session:
        lane = await session.lane("main", make_agent(desk, model))
        title("2", f"A new process ({os.getpid()}) opens the store. Opening starts nothing; this is what it finds:")
        await show_conversation(lane)
        if lane.inspect().operation is not None:
            await show_calls(lane)
        title("3", "It drives the operation:")
        outcome = await lane.drive(OPERATION)
        assert isinstance(outcome, Settled), outcome
        print(f"  lane   operation {OPERATION} is {outcome.result.status}", flush=True)
        title("4", "The conversation as the store holds it now:")
        await show_conversation(lane)
        show_ledger(session, outcome.result)


async def show_calls(lane: AgentLane[Desk]) -> None:
    """The open operation's calls: what the store says of each, and what follows from that."""
    operation = lane.inspect().operation
    assert operation is not None
    answer = next(e.body for e in await lane.entries(limit=1, types=["assistant"]))
    assert isinstance(answer, AssistantMessage)
    print(
        f"\n  operation {operation.operation_id} is {operation.status}, at {operation.at!r}, turn {operation.turn}:\n"
    )
    print(f"  {'call':<23} {'in the store':<31} so a drive will")
    for asked, record in zip(answer.calls, operation.calls, strict=True):
        state, plan = verdict(record)
        print(f"  {short(asked):<23} {state:<31} {plan}")


def verdict(record: CallRecord) -> tuple[str, str]:
    """What the store says of a call, and what a drive makes of that."""
    match record.status, record.policy:
        case "outcome_ready", _:
            return "outcome staged", "place it, and not run the tool"
        case "planned", _:
            return "planned, not started", "start it"
        case "effect_pending", "never":
            return "started, no outcome, never", "not run it: outcome unknown"
        case "effect_pending", policy:
            return f"started, no outcome, {policy}", "run it again"
        case status, _:
            return status, ""


async def show_conversation(lane: AgentLane[Desk]) -> None:
    """Every entry of the lane's path, a line each; who made a tool's result is in its details."""
    for entry in await lane.entries(newest_first=False):
        match entry.body:
            case UserMessage(content=content):
                tell("user", texts(content))
            case AssistantMessage() as answer:
                tell("model", answer.text)
                for asked in answer.calls:
                    print(f"            asks for {short(asked)}")
            case ToolResultMessage() as result:
                author = f"by process {made_by(result)}" if result.details else "by the library, an error"
                content = texts(result.content)
                tell("result", f"{result.name} {author}: {shortened(content, 60) if result.details else content}")
            case _:
                pass


def show_ledger(session: Session, result: OperationResult) -> None:
    totals = session.stats().usage
    print(
        f"\n  {result.turns} turns, {totals.rows} model requests in the ledger, {totals.unknown_rows} of unknown cost, "
        f"{totals.input_tokens + totals.output_tokens} tokens"
    )


# The parent: it starts both processes, and kills the first.


def run_demo(place: Place, model: str = SCRIPT) -> int:
    files = make_project(place.project)
    print("agentlane: an agent is killed in the middle of its work, and goes on in a new process.\n")
    print(f"  folder  a copy of agentlane's own source, {files} files, with a draft.txt and a stale build folder")
    print(f"  store   {place.store.name}, each commit synced to disk before it counts")
    print("  tools   safe: list_files read_file search   idempotent: write_file   never: delete_file delete_folder")
    if model != SCRIPT:
        print(f"  model   {model}: at most {REQUESTS_MAX} requests, and {TOKENS_MAX:,} tokens before the last of them")
    title("1", "A process accepts the task and drives it:")
    first, killed = run_and_kill(place, model)
    if not killed:
        if why := failure(place):
            return no_answer(why)
        print("\n  the model asked for no call that changes something: there is nothing to be killed in", flush=True)
    calls = asyncio.run(found(place))
    second = subprocess.Popen(command(place, "second", model))
    if second.wait(WAIT_S_MAX[model == SCRIPT]) != 0:
        raise SystemExit(f"the second process failed with exit code {second.returncode}")
    title("5", "Checked against the store and against the log of effects outside of it:")
    if model == SCRIPT:
        told = asyncio.run(check(place, first, second.pid, [call.status for call in calls]))
        claims = [Claim(*each) for each in told]
    else:
        claims = asyncio.run(check_any(place, first, second.pid, calls))
    broken = show_claims(claims, killed)
    why = failure(place)
    return 1 if broken else no_answer(why) if why else 0


def show_claims(claims: list[Claim], killed: bool) -> int:
    """Show each claim, and what could not be shown; how many are broken."""
    for claim, holds in claims:
        if holds is not None:
            print(f"  {'ok    ' if holds else 'BROKEN'}  {claim}")
    broken = sum(holds is False for _, holds in claims)
    print(f"\n{broken} of {len(claims)} claims are broken." if broken else "\nEvery claim holds.")
    open_claims = [claim for claim, holds in claims if holds is None]
    if open_claims:
        why = "nothing of the kind was under way" if killed else "it asked for no change, so nothing was killed"
        print(f"\nWhat this run of the model could not show ({why}):\n")
        for claim in open_claims:
            print(f"  --      {claim}")
    return broken


def failure(place: Place) -> str | None:
    """Why there was no answer to work with; None if there was one."""
    record = asyncio.run(kept(place)).record
    if record is None or record.status == "completed" or record.error is None:
        return None
    if record.code in ANSWERED:
        print(f"\n  the run ended early, {record.code}: {record.error.message}")
        return None
    return f"{record.code}: {record.error.message}"


def no_answer(why: str) -> int:
    print(f"\nThere was no model to work with. {textwrap.shorten(why, 1_000)}", file=sys.stderr)
    if "--model" not in why:
        print("--model provider:name or AGENTLANE_MODEL chooses another, --model script needs none.", file=sys.stderr)
    return 2


def make_project(project: Path) -> int:
    """A real folder to work on; gives the number of its files."""
    shutil.copytree(Path(agentlane.__file__).parent, project, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(project / "data", project / "build" / "lib")
    (project / "draft.txt").write_text("notes, to be thrown away\n")
    return sum(each.is_file() for each in project.rglob("*"))


def run_and_kill(place: Place, model: str) -> tuple[int, bool]:
    """Start the first process, wait until tools are held, kill it; its id, and whether there was something to kill."""
    reading, writing = os.pipe()
    child = subprocess.Popen([*command(place, "first", model), "--ready", str(writing)], pass_fds=[writing])
    os.close(writing)
    try:
        # The child writes one word when everything is in place. If it dies before, the pipe ends.
        readable, _, _ = select.select([reading], [], [], WAIT_S_MAX[model == SCRIPT])
        said = os.read(reading, 4096) if readable else b""
        if said == b"ended" or (readable and not said):
            child.wait()
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()
        os.close(reading)
    if child.returncode == 2:
        raise NoModel
    if said == b"ended" and model != SCRIPT and child.returncode == 0:
        return child.pid, False
    if said != b"held":
        raise SystemExit("the first process did not come to the point where it was to be killed")
    if child.returncode != -signal.SIGKILL:
        raise SystemExit(f"the first process ended by itself, with exit code {child.returncode}")
    print(f"\n  kill -9 {child.pid}", flush=True)
    return child.pid, True


def command(place: Place, role: str, model: str) -> list[str]:
    given = ["--folder", str(place.folder), "--store", place.store.suffix[1:], "--model", model]
    return [sys.executable, __file__, "--role", role, *given]


# Words.


def title(number: str, text: str) -> None:
    print(f"\n== {number}. {text}\n", flush=True)


def short(asked: ToolCallPart) -> str:
    """A call, by its first argument."""
    first: Any = next(iter((asked.arguments or {}).values()), "")
    return f"{asked.name}({first})"


def texts(content: Iterable[object]) -> str:
    return " ".join(part.text for part in content if isinstance(part, TextPart))


def shortened(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 4]} ..."


def tell(who: str, text: str) -> None:
    print(textwrap.fill(text, 100, initial_indent=f"  {who:<8}", subsequent_indent=" " * 12))


def main() -> int:
    parser = argparse.ArgumentParser(description="An agent is killed in the middle of its work, and goes on.")
    parser.add_argument("--store", choices=["sqlite", "jsonl"], default="sqlite", help="what keeps the session")
    parser.add_argument("--keep", action="store_true", help="keep the folder, to look at the store afterwards")
    parser.add_argument("--model", help="provider:name, or script; else AGENTLANE_MODEL, or what the keys set lead to")
    parser.add_argument("--role", choices=["first", "second"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ready", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="agentlane-demo-"))
    place = Place(folder, folder / f"work.{given.store}")
    try:
        if given.role == "first":
            asyncio.run(first_process(place, given.ready, given.model))
            return 0
        if given.role == "second":
            asyncio.run(second_process(place, given.model))
            return 0
        model = choose_model(given.model, os.environ)
        os.environ.update(key_for(model, os.environ))
        return run_demo(place, model)
    except (NoModel, InvalidDefinition) as error:
        return no_answer(str(error)) if str(error) else 2  # the child has said why
    finally:
        if given.role is None:
            if given.keep:
                print(f"kept: {folder}")
            else:
                shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
