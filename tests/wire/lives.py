"""Children of a process that has loaded everything, to be killed, and what is asked once they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire.anthropic_rules import Provider


class Lives:
    """Children, one after another, of a process that has loaded everything."""

    def __init__(self, script: str) -> None:
        self._mother = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._child = 0

    def begin(self, provider: Provider, target: Path, *, ends: bool = True) -> None:
        """A child begins; its tools come to their ends, or never do."""
        assert self._mother.stdin is not None
        job = {"url": provider.url, "target": str(target), "ends": ends}
        self._mother.stdin.write(json.dumps(job) + "\n")
        self._mother.stdin.flush()
        self._child = int(self._line().split()[1])

    def begun(self, count: int) -> list[str]:
        """The next tools that begin."""
        return [self._line().removeprefix("begun ") for _ in range(count)]

    def kill(self) -> list[str]:
        """Kill the child; gives the tools that began and were not asked for."""
        os.kill(self._child, signal.SIGKILL)
        lines = []
        while not (line := self._line()).startswith("end"):
            lines.append(line.removeprefix("begun "))
        assert line == f"end {signal.SIGKILL.value}"
        return lines

    def close(self) -> None:
        with self._mother:
            assert self._mother.stdin is not None
            self._mother.stdin.close()
            if self._mother.wait(60):
                pytest.fail("the mother of all children failed")

    def _line(self) -> str:
        assert self._mother.stdout is not None
        line = self._mother.stdout.readline()
        assert line, "the mother of all children is gone"
        return line.strip()


def results(provider: Provider) -> list[str]:
    """What the last request says of each call."""
    blocks = [block for turn in provider.bodies[-1]["messages"] for block in turn["content"]]
    return [block["content"][0]["text"] for block in blocks if block["type"] == "tool_result"]
