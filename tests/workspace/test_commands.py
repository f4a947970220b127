"""Claim: a command's output is kept from both ends as it comes, and nothing of it lives on when its call is over."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.tools.workspace import Workspace, commands
from agentlane.tools.workspace.output import Output
from tests.workspace.stub import Ctx, Hands


@given(st.lists(st.binary(max_size=40) | st.text(alphabet="aé\n", max_size=20).map(str.encode), max_size=12))
def test_output_is_bounded_and_both_its_ends_are_kept(chunks: list[bytes]) -> None:
    output = Output(bytes_max=40, lines_max=6)
    for chunk in chunks:
        output.add(chunk)
    whole = b"".join(chunks)
    text = output.text()
    lines = whole.split(b"\n")
    count = len(lines) - (lines[-1] == b"")

    assert output.total == len(whole)
    if len(whole) <= 40 and count <= 6:
        assert text == whole.decode("utf-8", "replace")
        return
    head, mark, tail = cut(text)
    said = [int(word) for word in mark.replace("[", "").split() if word.isdigit()]
    if whole.isascii():
        assert whole.startswith(head.rstrip("\n").encode()) and whole.endswith(tail.encode())
        assert len(whole) - said[0] <= 40 and whole.count(b"\n") - said[1] <= 7
    assert head.count("\n") + tail.count("\n") <= 7


def cut(text: str) -> tuple[str, str, str]:
    at = text.index("[")
    end = text.index("]", at)
    return text[:at], text[at : end + 1], text[end + 2 :]


def test_what_was_left_out_is_counted() -> None:
    output = Output(bytes_max=20, lines_max=100)
    for number in range(100):
        output.add(b"%02d\n" % number)

    assert output.text() == "00\n01\n02\n[282 bytes left out here, 94 line ends among them]\n97\n98\n99\n"
    assert output.latest(2) == "98\n99"


def test_a_character_is_not_cut_in_two() -> None:
    output = Output(bytes_max=9, lines_max=9)
    output.add("ééééééé".encode())

    assert output.text() == "éé\n[6 bytes left out here, 0 line ends among them]\néé"


def test_a_command_runs_in_the_folder_and_tells_how_it_ended(tmp_path: Path) -> None:
    hands = Hands(tmp_path)

    assert hands("run_command", command="pwd; echo to stderr >&2; exit 3") == (
        f"{os.path.realpath(tmp_path)}\nto stderr\n[exit code 3]"
    )
    assert hands("run_command", command="printf x") == "x\n[exit code 0]"
    assert hands("run_command", command="cat") == "[exit code 0]", "it has no input"
    assert hands("run_command", command="kill -9 $$") == "[exit code -9]"
    assert hands("run_command", command="x", timeout_seconds=0).startswith("refused: timeout_seconds")
    value = asyncio.run(hands.value("run_command", command="printf ab; exit 1"))
    assert value.details == {"end": "exited", "exit_code": 1, "output_bytes": 2} and not value.is_error


def test_keys_of_the_process_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "secret")
    given_some = Workspace(tmp_path, environment={"MINE": "yes"})

    seen = Hands(tmp_path)("run_command", command="env")
    assert "secret" not in seen and "PATH=" in seen and "TERM=dumb" in seen
    tool = given_some.tools(["run_command"])[0]
    ran: Any = asyncio.run(tool.call(tool.check({"command": "echo $MINE"}, None), Ctx()))  # type: ignore[arg-type]
    assert ran.content == "yes\n[exit code 0]"


def test_much_output_is_cut_and_too_much_stops_the_command(tmp_path: Path) -> None:
    hands = Hands(tmp_path, output_bytes=200, output_lines=10, output_total_bytes=100_000)

    text = hands("run_command", command="i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done")
    assert text.startswith("line 0\nline 1\n") and text.endswith("line 498\nline 499\n[exit code 0]")
    assert "bytes left out here" in text and len(text) < 400
    stopped = asyncio.run(hands.value("run_command", command="yes"))
    assert stopped.is_error and stopped.content.endswith("[stopped: it wrote more than 100000 bytes]")
    assert stopped.details["end"] == "too much output"


FAMILY = """
trap '' TERM
(trap '' TERM; exec 3>{pipe}; echo ready >&3; while :; do sleep 1000; done) &
echo started $$
wait
"""
"""A shell and a child of it that both ignore SIGTERM; the child holds a pipe for as long as it lives."""


def family(folder: Path) -> tuple[str, Path]:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    return FAMILY.format(pipe=pipe), pipe


async def gone(pipe: int) -> None:
    """Until everybody who held the pipe is dead: the end of the file comes then, and not before."""
    while await asyncio.to_thread(os.read, pipe, 100):
        pass
    os.close(pipe)


def check_reaped(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize("system", ["descriptors", "polled"])
@pytest.mark.parametrize("twice", [False, True], ids=["cancelled", "cancelled twice"])
def test_a_cancelled_command_is_dead_with_all_its_children_and_no_zombie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, twice: bool
) -> None:
    if system == "polled":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    command, name = family(tmp_path)

    async def main() -> int:
        hands, ctx = Hands(tmp_path, stop_ms=20), Ctx()
        started = asyncio.Event()
        ctx.on_progress = lambda text: started.set() if "started" in text else None
        task = asyncio.ensure_future(hands.value("run_command", ctx, command=command))
        pipe = await asyncio.to_thread(os.open, name, os.O_RDONLY)
        assert await asyncio.to_thread(os.read, pipe, 6) == b"ready\n"
        await started.wait()
        task.cancel()
        if twice:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(pipe)
        pid = int(ctx.told[-1].split()[-1])
        if twice:
            while os.path.exists(f"/proc/{pid}"):  # a thread of its own takes its exit code
                await asyncio.sleep(0)
        return pid

    check_reaped(asyncio.run(main()))
    gc.collect()


def test_a_command_that_takes_too_long_is_stopped_and_keeps_what_it_said(tmp_path: Path) -> None:
    command, name = family(tmp_path)

    async def main() -> Any:
        hands = Hands(tmp_path, stop_ms=20)
        task = asyncio.ensure_future(hands.value("run_command", command=command, timeout_seconds=0.3))
        pipe = await asyncio.to_thread(os.open, name, os.O_RDONLY)
        value = await task
        await gone(pipe)
        return value

    value = asyncio.run(main())

    assert value.is_error and value.content.endswith("[stopped: it had not ended after 300 ms]")
    assert value.details["exit_code"] == -9


def test_a_command_may_clean_up_when_it_is_stopped(tmp_path: Path) -> None:
    hands = Hands(tmp_path, stop_ms=60_000)
    command = "trap 'echo cleaned; exit 5' TERM; echo ready; while :; do :; done"

    async def main() -> str:
        ctx = Ctx()
        ready = asyncio.Event()
        ctx.on_progress = lambda text: ready.set()
        running = commands.Command(["/bin/sh", "-c", command], str(tmp_path), os.environ, hands.workspace.limits)

        async def tell(output: Output) -> None:
            await ctx.progress(output.latest(9))

        following = asyncio.ensure_future(running.follow(60_000, tell))
        await ready.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await running.stop()
        return f"{running.output.text()}{running.exit_code}"

    assert asyncio.run(main()) == "ready\ncleaned\n5"


def test_what_is_left_in_the_background_is_killed_with_the_end_of_the_command(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def main() -> str:
        hands = Hands(tmp_path)
        command = f"(exec 3>{pipe}; while :; do sleep 1000; done) & exec 4>{pipe}; echo done"
        task = asyncio.ensure_future(hands.text("run_command", command=command))
        held = await asyncio.to_thread(os.open, pipe, os.O_RDONLY)
        text = await task
        await gone(held)
        return text

    assert asyncio.run(main()) == "done\n[exit code 0]"


def test_output_is_told_as_progress(tmp_path: Path) -> None:
    ctx = Ctx()

    Hands(tmp_path)("run_command", ctx, command="for i in 1 2 3; do echo step $i; done")

    assert ctx.told and ctx.told[-1].startswith("step 1") and all("step" in each for each in ctx.told)


def test_a_call_that_fails_to_tell_leaves_nothing_behind(tmp_path: Path) -> None:
    ctx = Ctx()
    open_before = len(os.listdir("/dev/fd"))

    def fail(text: str) -> None:
        raise RuntimeError("the call is over")

    ctx.on_progress = fail
    with pytest.raises(RuntimeError):
        Hands(tmp_path, stop_ms=20)("run_command", ctx, command="echo $$ > pid; echo x; sleep 1000")

    check_reaped(int((tmp_path / "pid").read_text()))
    assert len(os.listdir("/dev/fd")) == open_before


def test_a_shell_that_is_not_there_is_an_error_without_leaks(tmp_path: Path) -> None:
    open_before = len(os.listdir("/dev/fd"))
    tool = Workspace(tmp_path, shell="/no/shell").tools(["run_command"])[0]

    with pytest.raises(FileNotFoundError):
        asyncio.run(tool.call(tool.check({"command": "x"}, None), Ctx()))  # type: ignore[arg-type]
    assert len(os.listdir("/dev/fd")) == open_before
