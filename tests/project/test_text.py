"""Claim: the repository reads the same anywhere: no path of one machine, no registry, no command that is not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Joined here, so that this file does not hold what it looks for.
FORBIDDEN = ["/".join(["", *parts, ""]) for parts in (["work"], ["root"], ["farm"])] + [
    "/".join(["", "tmp", "venv"]),
    ".".join(["pypi", "org"]),
    ".".join(["pythonhosted", "org"]),
]


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def findings(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8", errors="replace")
    return [
        f"{path}:{number}: holds {word!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for word in FORBIDDEN
        if word in line
    ]


def test_no_file_names_a_machine_path_or_a_registry() -> None:
    found = [finding for path in tracked_files() for finding in findings(path)]

    assert not found, "\n".join(found)


def test_a_machine_path_is_found_with_its_line(tmp_path: Path) -> None:
    sample = tmp_path / "sample.md"
    sample.write_text(f"fine\nsee {FORBIDDEN[0]}notes\n")

    assert findings(sample) == [f"{sample}:2: holds {FORBIDDEN[0]!r}"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_each_make_command_a_document_names_is_in_the_makefile(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    code = re.findall(r"```.*?```|`[^`\n]+`", (ROOT / document).read_text(), flags=re.DOTALL)
    named = {target for piece in code for target in re.findall(r"\bmake ([a-z]+)", piece)}

    assert {"demo", "test"} <= targets
    assert named, f"{document} names no make command"
    assert named <= targets
