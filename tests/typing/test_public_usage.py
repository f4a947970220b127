"""Claim: the public surface is typed as users read it, by the package that is installed and without our settings."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import agentlane

HERE = Path(__file__).parent
SECONDS_MAX = 300


def mypy(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Strict mypy on one file, in a folder without configuration; it finds agentlane where this process did."""
    home = Path(agentlane.__file__).parents[1]
    environment = dict(os.environ) if home.name == "site-packages" else {**os.environ, "MYPYPATH": str(home)}
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(cache), str(path)]
    return subprocess.run(
        command, cwd=cache, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def test_the_package_says_that_it_is_typed() -> None:
    assert (files("agentlane") / "py.typed").is_file()


def test_realistic_usage_is_accepted_and_wrong_usage_refused(tmp_path: Path) -> None:
    checked = mypy(HERE / "public_usage.py", tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    # And the check sees something: with a wrong claim in the file it fails.
    wrong = tmp_path / "wrong.py"
    text = (HERE / "public_usage.py").read_text()
    wrong.write_text(text.replace("assert_type(agent, Agent[Deps, str])", "assert_type(agent, Agent[None, str])"))
    refused = mypy(wrong, tmp_path)
    assert refused.returncode == 1
    assert 'Expression is of type "Agent[Deps, str]"' in refused.stdout, refused.stdout
