"""Claim: importing the library loads what every program needs of it, and no store or copy that it may never use."""

from __future__ import annotations

import subprocess
import sys

ABSENT = (
    *("sqlite3", "aiosqlite", "tempfile", "hashlib", "random"),
    *("agentlane.forking", "agentlane.testing", "agentlane.storage.exchange", "agentlane.storage.indexed"),
    *("agentlane.storage.jsonl", "agentlane.storage.sqlite", "agentlane.storage.memory", "agentlane.storage.searching"),
    *("agentlane.histories.reading", "agentlane.histories.openai", "agentlane.histories.markdown"),
    "agentlane.skills.library",
)
CODE = f"""
import sys
import agentlane
print([each for each in {ABSENT!r} if each in sys.modules])
import agentlane.storage
from agentlane.storage import *
print([name for name in agentlane.storage.__all__ if name not in globals()])
print([each for each in {ABSENT!r} if each not in sys.modules])
try:
    agentlane.storage.NoStore
except AttributeError as error:
    print(error)
"""


def test_what_is_not_named_is_not_imported() -> None:
    """And all of the stores is there once it is named."""
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    before, missing, after, error = ran.stdout.splitlines()

    assert (before, missing) == ("[]", "[]")
    assert "agentlane.storage.sqlite" not in after and "agentlane.testing" in after
    assert error == "module 'agentlane.storage' has no attribute 'NoStore'"
