"""Claim: what the documentation shows runs and prints what it says, and every link in it leads somewhere."""

from __future__ import annotations

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import CodeType
from typing import Any, get_args

import pytest

import agentlane
from agentlane import (
    AbortReceipt,
    Admitted,
    AgentLaneError,
    CallRecord,
    LaneInspection,
    Operation,
    OperationResult,
)
from agentlane.data import inspection, results
from tests.docs.local_server import ADDRESS, local_server
from tests.docs.pages import ROOT, Block, anchors, blocks, environment, links, name_of, pages

SECONDS_MAX = 60


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_python_blocks_run_and_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = ""
    for block in blocks(page):
        place = f"{name_of(page)}:{block.line}"
        if block.language == "python":
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if block.marker == "fragment" else 0
            code = compiled(page, block, flags=flags)
            if block.marker == "file":
                (tmp_path / block.file).write_text(block.text)
            elif block.marker == "local server":
                pytest.importorskip("openai")
                with local_server() as address:
                    monkeypatch.setenv("OPENAI_API_KEY", "a key of the reader's")
                    names = {"__name__": "__main__"}
                    exec(compiled(page, block._replace(text=ADDRESS.sub(address, block.text))), names)
                printed += capsys.readouterr().out
            elif block.marker != "fragment":
                if block.marker != "continues":
                    names = {"__name__": "__main__", "__file__": str(tmp_path / "sample.py")}
                    (tmp_path / "sample.py").write_text(block.text)
                exec(code, names)
                printed += capsys.readouterr().out
        elif block.marker == "output":
            assert printed == block.text, f"{place}: the blocks before it print something else"
            printed = ""


def compiled(page: Path, block: Block, *, flags: int = 0) -> CodeType:
    """The block's code. The lines before it are kept, so that a traceback names the page's own line."""
    return compile("\n" * (block.line - 1) + block.text, str(page), "exec", flags, dont_inherit=True)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            broken.append(f"{target}: there is no such file")
        elif not there.is_relative_to(ROOT):
            broken.append(f"{target}: outside of the repository")
        elif anchor and anchor not in anchors(there):
            broken.append(f"{target}: no such heading; there are {sorted(anchors(there))}")

    assert not broken, f"{name_of(page)}:\n" + "\n".join(broken)


def test_every_page_is_listed_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}

    missing = [name_of(page) for page in pages()[1:] if page != index and page not in listed]
    assert not missing, missing


def test_the_tutorial_goes_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "first-run.md"
    sessions = []
    for block in blocks(page):
        if block.marker == "file":
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "console":
            command, *shown = block.text.splitlines()
            said = run_as_shown(command.removeprefix("$ python "), tmp_path, killed=shown[-1] == "Killed")
            sessions.append(command)
            assert [re.sub(r"-9 \d+", "-9 12345", line) for line in said] == shown, f"line {block.line}: {command}"

    assert sessions == ["$ python agent.py", "$ python look.py", "$ python agent.py"]
    assert (tmp_path / "sent.txt").read_text() == "a letter to Ada\n"
    assert run_as_shown("agent.py", tmp_path)[:2] == [
        "open: []",
        "completed: Bob lives in Mill Lane. I do not know whether Ada's letter went out.",
    ]


def run_as_shown(program: str, folder: Path, *, killed: bool = False) -> list[str]:
    """What the program prints; with ``killed``, it gets SIGKILL when it asks for it."""
    command = [sys.executable, "-u", program]
    child = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = []
    assert child.stdout is not None
    for line in child.stdout:
        said.append(line.rstrip("\n"))
        if killed and line.startswith("kill me now"):
            os.kill(child.pid, signal.SIGKILL)
            break
    _, problems = child.communicate(timeout=SECONDS_MAX)
    assert child.returncode == (-signal.SIGKILL if killed else 0), problems
    return [*said, "Killed"] if killed else said


def words(page: str) -> set[str]:
    """The names that a page shows as code."""
    pieces = re.findall(r"`([^`\n]+)`", (ROOT / "docs" / page).read_text())
    return {word for piece in pieces for word in re.findall(r"\w+", piece)}


@pytest.mark.parametrize("place", ["agentlane", "agentlane.storage", "agentlane.testing", "agentlane.tools.workspace"])
def test_every_public_name_is_in_the_reference(place: str) -> None:
    named = words("reference/public-api.md") | words("reference/errors.md")

    assert [name for name in importlib.import_module(place).__all__ if name not in named] == []


def test_the_errors_page_has_every_error_with_its_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE))
    kinds = [getattr(agentlane, name) for name in agentlane.__all__]
    errors = {kind.__name__: kind.code for kind in kinds if isinstance(kind, type) and issubclass(kind, AgentLaneError)}

    assert rows == {name: code for name, code in errors.items() if name != "AgentLaneError"}


def test_the_results_page_has_every_field_and_state() -> None:
    named = words("reference/results-and-states.md")
    records = [OperationResult, Admitted, AbortReceipt, Operation, CallRecord, LaneInspection]
    fields = {field for record in records for field in record.__struct_fields__}
    states = {*get_args(inspection.Phase), *get_args(inspection.CallStatus), *get_args(results.Status)}

    assert (fields | states) - named == set()
