"""Claim: this proof can fail: a library with one of these defects is found out by the first kill that meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills.children import Zygote
from tests.kills.history import History
from tests.kills.judge import judge
from tests.kills.reports import Stop

SAID = Stop("kill", "commit.queue.after", 2)
CALLS_BEGUN = Stop("kill", "effect.tool.start", 5)
ACCEPTED = Stop("kill", "commit.accept.after")


@pytest.mark.parametrize(
    ("broken", "disk", "stop", "told"),
    [
        ("replays_never", "jsonl", CALLS_BEGUN, "a call that must not run again ran again"),
        ("replays_never", "sqlite", CALLS_BEGUN, "a call that must not run again ran again"),
        ("forgets_request_ids", "jsonl", SAID, "messages were said as"),
        ("forgets_request_ids", "sqlite", SAID, "messages were said as"),
        ("keeps_the_lock", "jsonl", CALLS_BEGUN, "it was refused: session_owned"),
        ("keeps_the_lock", "sqlite", CALLS_BEGUN, "it was refused: store_owned"),
        ("writes_late", "jsonl", ACCEPTED, "was acknowledged and is lost"),
        ("commits_late", "sqlite", ACCEPTED, "was acknowledged and is lost"),
    ],
)
async def test_a_broken_library_is_found_out(
    broken: str, disk: str, stop: Stop, told: str, zygote: Zygote, tmp_path: Path
) -> None:
    work = "host" if stop is SAID else "mixed"
    history = History(
        zygote.start, tmp_path / "broken", work=work, disk=disk, durability="process", seed=1, broken=broken
    )

    assert history.run(stop).how == "kill", history.story()
    history.run()
    found = await judge(history)

    assert any(told in each for each in found), "\n".join([*found, history.story()])
