"""Claim: every example runs to its end, says what it promises to say, and the demo notices when it does not."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import ROOT, environment

EXAMPLES = ROOT / "examples"
SECONDS_MAX = 120


def run(name: str, *arguments: str, cwd: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(),
        input=said,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def lines_in_order(text: str, wanted: list[str]) -> list[str]:
    """Those of the wanted pieces that do not come, in this order, in the lines of the text."""
    lines = iter(text.splitlines())
    return [piece for piece in wanted if not any(piece in line for line in lines)]


def test_every_example_has_a_test_here() -> None:
    examples = {path.name for path in EXAMPLES.glob("[!_]*.py")}

    assert examples == {
        "agents_as_tools.py",
        "approve_across_a_restart.py",
        "crash_and_resume.py",
        "crash_test_your_agent.py",
        "long_conversation.py",
        "quickstart.py",
        "several_lanes.py",
        "stream_to_a_terminal.py",
        "chat_with_steering.py",
    }


def test_quickstart_answers_and_answers_again_from_the_store(tmp_path: Path) -> None:
    first = run("quickstart.py", cwd=tmp_path)
    second = run("quickstart.py", cwd=tmp_path)

    assert (first.returncode, first.stdout) == (0, "It is a short one.\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "It is a short one.\n"), second.stderr
    assert (tmp_path / "work.db").is_file()


def test_one_agent_asks_another_and_once_is_enough(tmp_path: Path) -> None:
    first = run("agents_as_tools.py", cwd=tmp_path)
    second = run("agents_as_tools.py", cwd=tmp_path)

    told = "Lyon is the larger one.\nchild: 5 messages\nmain: 4 messages\n"
    assert (first.returncode, first.stdout) == (0, told), first.stderr
    assert (second.returncode, second.stdout) == (0, told), second.stderr


def test_quickstart_is_the_sample_of_the_readme() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()

    assert f"```python\n{(EXAMPLES / 'quickstart.py').read_text()}```" in readme


def test_an_approval_is_given_in_another_process(tmp_path: Path) -> None:
    told = [run("approve_across_a_restart.py", word, cwd=tmp_path) for word in ("ask", "ask", "answer", "finish")]

    assert [each.returncode for each in told] == [0, 0, 0, 0], [each.stderr for each in told]
    assert [each.stdout.splitlines() for each in told] == [
        ["list_folder(.) runs", "it waits for 1 answer"],
        ["it waits for 1 answer"],
        ["May the tool 'delete_folder' run? delete_folder{'path': 'build'}"],
        ["delete_folder(build) runs", "completed: The build folder is gone."],
    ]


def test_the_chat_hears_each_line_once_in_order_over_two_processes(tmp_path: Path) -> None:
    first = run("chat_with_steering.py", cwd=tmp_path, said="one\ntwo\nthree\n")
    second = run("chat_with_steering.py", cwd=tmp_path, said="four\n/stop\n")

    assert (first.returncode, first.stderr, second.returncode, second.stderr) == (0, "", 0, "")
    counted, *answers = first.stdout.splitlines()
    heard = [word for line in answers for word in line.removeprefix("agent: I heard ").split(" and ")]
    assert (counted, heard) == ("0 messages so far", ["one", "two", "three"])
    counted, *rest = second.stdout.splitlines()
    assert int(counted.split()[0]) == 3 + len(answers)
    assert rest == ["agent: I heard four"] or "aborted; not said: []" in rest[-1]


@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
def test_the_demo_is_killed_resumed_and_checked(store: str, tmp_path: Path) -> None:
    done = run("crash_and_resume.py", "--store", store, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    missing = lines_in_order(
        done.stdout,
        [
            f"store   work.{store}",
            "operation tidy-up-1 is accepted: durable, and not started",
            "search is half way, and held there",
            "delete_folder is half way, and held there",
            "kill -9",
            "opens the store. Opening starts nothing",
            "search(def accept)      started, no outcome, safe       run it again",
            "read_file(ids.py)       outcome staged                  place it, and not run the tool",
            "delete_file(draft.txt)  outcome staged                  place it, and not run the tool",
            "write_file(NOTES.md)    started, no outcome, idempotent run it again",
            "delete_folder(build)    started, no outcome, never      not run it: outcome unknown",
            "read_file(errors.py)    planned, not started            start it",
            "search(def accept) starts again (start 2)",
            "operation tidy-up-1 is completed",
            "delete_folder by the library, an error",
            "4 turns, 4 model requests in the ledger",
            "Every claim holds.",
        ],
    )
    assert not missing, f"missing, from {missing[0]!r} on:\n{done.stdout}"
    assert done.stdout.count("  ok  ") == 9
    assert not list(tmp_path.iterdir()), "the demo leaves nothing where it is run"


def test_the_crash_test_shows_a_true_policy_and_a_false_one(tmp_path: Path) -> None:
    done = run("crash_test_your_agent.py", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    missing = lines_in_order(
        done.stdout,
        [
            "send is never  memory",
            "send is never  jsonl",
            "send is never  sqlite",
            "processes were killed",
            "sent twice",
        ],
    )
    assert not missing, f"missing, from {missing[0]!r} on:\n{done.stdout}"
    assert "FAILED" not in done.stdout
    assert "kill@" in done.stdout.splitlines()[-1]


def test_a_long_conversation_is_compacted_killed_and_checked(tmp_path: Path) -> None:
    done = run("long_conversation.py", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    missing = lines_in_order(
        done.stdout,
        [
            "answer    9 messages, 1471 tokens,  4 marks",
            "summary   1 messages,",
            "answer    5 messages,",
            "summary   1 messages,  512 tokens,  6 marks",
            "kill -9",
            "found    read-1 at 'summarizing', for the reason 'threshold'",
            "summary   1 messages,  512 tokens,  6 marks",
            "answer    5 messages,  791 tokens,  8 marks",
            "24 marks",
            "what it showed was summarized 7 times",
        ],
    )
    assert not missing, f"missing, from {missing[0]!r} on:\n{done.stdout}"
    assert (done.stdout.count("  ok  "), "BROKEN" in done.stdout) == (10, False)
    assert not list(tmp_path.iterdir()), "it leaves nothing where it is run"


def test_the_long_conversation_notices_each_broken_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given the same run without a kill: only what is claimed of the kill does not hold
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("long_conversation")
    asyncio.run(example.work(tmp_path))
    log = tmp_path / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]

    def broken(changed: list[dict[str, Any]]) -> list[int]:
        log.write_text("".join(json.dumps(line) + "\n" for line in changed))
        return [index for index, claim in enumerate(asyncio.run(example.check(tmp_path))) if not claim.holds]

    assert broken(lines) == [6, 7]

    # When the log tells otherwise, then that claim is broken too
    answer = next(index for index, line in enumerate(lines) if line["kind"] == "answer" and line["marks"] == 9)
    for changes, claim in [({"marks": 8}, 5), ({"tokens": 2_251}, 4)]:
        assert broken([*lines[:answer], lines[answer] | changes, *lines[answer + 1 :]]) == sorted([6, 7, claim])
    assert broken([*lines, next(line for line in lines if line["kind"] == "call")]) == [3, 6, 7]
    assert broken([*lines, lines[-1]]) == [5, 6, 7, 8]
    capsys.readouterr()


def test_a_run_is_streamed_to_the_terminal(tmp_path: Path) -> None:
    done = run("stream_to_a_terminal.py", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "I look it up.",
        "  search runs",
        "",
        "  search runs",
        "  search: looking for 'lighthouse'",
        "  search: looking for 'sea'",
        "  search gives \"3 notes with 'sea'\"",
        "  search gives \"3 notes with 'lighthouse'\"",
        "Six notes in all.",
        "(completed, 2 turns)",
    ]


def test_several_lanes_are_watched_at_once(tmp_path: Path) -> None:
    done = run("several_lanes.py", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("at first: kitchen", "in the end: {'kitchen': 4, 'hall': 4, 'attic': 4}")
    for lane in ("kitchen", "hall", "attic"):
        own = [line.removeprefix(f"{lane}: ") for line in lines if line.startswith(f"{lane}: ")]
        messages = ["UserMessage", "AssistantMessage", "ToolResultMessage", "AssistantMessage"]
        assert own == [*(["opened"] if lane != "kitchen" else []), *messages, f"completed: The {lane} is small."]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    return importlib.import_module("crash_and_resume")


def again(log: list[dict[str, Any]], what: str) -> None:
    """One more start of the same call, or of the model, in the world."""
    log.append(dict(next(each for each in reversed(log) if each["what"] == what and each["event"] == "start")))


def test_the_demo_notices_each_broken_claim(
    demo: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Given a demo that went well, its log of effects, and the processes that wrote it
    place = demo.Place(tmp_path, tmp_path / "work.jsonl")
    assert demo.run_demo(place) == 0
    log = [json.loads(line) for line in place.effects.read_text().splitlines()]
    first, second = log[0]["process"], log[-1]["process"]
    seen = ["effect_pending", "outcome_ready", "outcome_ready", "effect_pending", "effect_pending", "planned"]

    def broken(changed: list[dict[str, Any]], said: list[str] = seen) -> list[str]:
        place.effects.write_text("".join(json.dumps(line) + "\n" for line in changed))
        return [
            claim.split(":")[0] for claim, holds in asyncio.run(demo.check(place, first, second, said)) if not holds
        ]

    assert broken(log) == []

    # When the world is told otherwise, then the claim about it is broken, and no other
    for what, claim in {
        "search": "the safe call ran twice",
        "delete_file": "staged outcomes were kept",
        "write_file": "the idempotent call ran again under the same key, and left one whole file and no draft",
        "delete_folder": "the never call started exactly once, and its result says that the outcome is unknown",
        "model": "the model was not asked again for an answer that was settled",
    }.items():
        changed = list(log)
        again(changed, what)
        assert broken(changed) == [claim]
    assert broken(log, ["planned"]) == [
        "at the kill the store held two staged outcomes behind an unfinished call, and one call not started"
    ]
    capfd.readouterr()
