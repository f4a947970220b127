"""Claim: an owner that stands still is an owner, and goes on where it stood."""

from __future__ import annotations

import signal

import pytest

from tests.owners.processes import Refused, Stage


@pytest.mark.parametrize("beside", ["nothing", "compact"])
async def test_a_stopped_owner_is_not_replaced_and_goes_on(stage: Stage, beside: str) -> None:
    owner, other, reader = stage.owner(), stage.process(), stage.process()
    owner.begin("work", beside=beside, name="o")
    owner.until("round")
    owner.signal(signal.SIGSTOP)

    for _ in range(3):
        with pytest.raises(Refused) as refused:
            other.do("open")
        assert refused.value.code == stage.owned
        assert refused.value.owner["pid"] == owner.pid
    with pytest.raises(Refused) as refused:
        other.do("remove")
    assert refused.value.code == stage.owned
    seen = reader.do("read")  # nobody is held up who reads

    owner.signal(signal.SIGCONT)
    while not set(seen) <= set(owner.wrote):  # what was committed before it stood still may not have been said
        owner.until("wrote")
    owner.until("round", times=2)
    owner.kill()
    assert other.do("open")["log"][: len(seen)] == [[owner.wrote[text], text] for text in seen]
    await stage.judge(owner.wrote, owner.begun)
