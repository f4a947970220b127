"""Claim: the names of agentlane.mcp are documented, the guide goes as it says, and a missing SDK is named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import agentlane
import agentlane.mcp
from tests.docs.pages import ROOT, blocks, environment
from tests.mcp.conftest import HERE


def test_every_name_is_sorted_documented_and_in_the_reference() -> None:
    names = agentlane.mcp.__all__
    page = (ROOT / "docs/reference/mcp.md").read_text()
    shown = {
        word
        for piece in re.findall(r"`([^`\n]+)`|^(\w+)\(", page, re.MULTILINE)
        for word in re.findall(r"\w+", "".join(piece))
    }

    assert list(names) == sorted(set(names))
    assert [name for name in names if name not in shown] == []
    assert [name for name in names if not getattr(agentlane.mcp, name).__doc__] == []
    assert not set(names) & set(agentlane.__all__)


def test_every_option_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/mcp.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))

    assert set(agentlane.mcp.ServerOptions.__annotations__) <= rows


def test_the_guide_goes_as_it_says(tmp_path: Path, zygote: str) -> None:
    page = list(blocks(ROOT / "docs/how-to/use-mcp-tools.md"))
    files = {block.file: block.text for block in page if block.file}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (said,) = [block.text for block in page if block.language == "text"]
    python = (
        tmp_path / "python"
    )  # one that has imported the SDK already, for the guide and for the server that it starts
    python.write_text(
        f"#!/bin/sh\nZYGOTE={zygote} FOLDER={tmp_path} exec {sys.executable} -I -S {HERE / 'through.py'} "
        f'script {python} "$@"\n'
    )
    python.chmod(0o755)

    ran = subprocess.run(
        [python, "use_notes.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )

    assert ran.stdout.strip() == said.strip(), ran.stderr


def test_without_the_sdk_the_import_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['mcp'] = None\ntry: import agentlane.mcp\nexcept ImportError as error: print(error)"
    )
    program += (
        "\nimport agentlane; print([name for name in sys.modules if name.startswith(('mcp_', 'httpx', 'pydantic'))])"
    )

    ran = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [
        "agentlane.mcp needs the mcp SDK, which is not installed here: pip install 'agentlane-runtime[mcp]'",
        "[]",
    ]
