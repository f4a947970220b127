"""Claim: a fork anywhere on a path with summaries has every parent, and shows its model what the path there did."""

from __future__ import annotations

from agentlane import Agent, open_session
from agentlane.testing import check_invariants
from tests.driver.compacting import compacting, said, shown, talk
from tests.session.places import Place
from tests.session.test_compaction_reopened import model


def agent() -> Agent:
    return compacting(model("S", *(said(f"a{number}") for number in range(1, 12))))


async def test_a_fork_at_each_entry_of_a_path_with_summaries_shows_the_same(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent())
    await talk(lane, "u1", "u2", "u3")
    await lane.compact(keep_tokens=0)
    await talk(lane, "u4")
    left = await lane.entries(newest_first=False)
    await lane.navigate(left[3].id, label="left", summarize=True)
    await talk(lane, "u5")
    await lane.compact(keep_tokens=0)
    await talk(lane, "u6")
    kinds = {entry.type for entry in await session.entries()}
    assert kinds == {"message", "compaction", "branch_summary"}

    for number, entry in enumerate(await session.entries()):
        branch = await session.create_branch(f"at{number}", entry.id)
        there = await branch.entries(newest_first=False)
        asked = agent()
        beside = await session.lane(f"at{number}", asked)
        await talk(beside, "next")

        info = await session.fork(at=entry.id, branch=f"at{number}")
        child = await open_session(place.store, session_id=info.id)
        copied = await child.branch(f"at{number}").entries(newest_first=False)
        asked_there = agent()
        await talk(await child.lane(f"at{number}", asked_there), "next")

        assert [(each.id, each.parent_id, each.body) for each in copied] == [
            (each.id, each.parent_id, each.body) for each in there
        ]
        assert [each.parent_id for each in copied] == [None, *(each.id for each in copied[:-1])]
        assert request_of(asked_there) == request_of(asked)
        assert await child.label(left[-1].id) == ("left" if left[-1].id in {each.id for each in copied} else None)
        assert await check_invariants(child) == []
        await child.close()


def request_of(asked: Agent) -> list[str]:
    (model,) = asked.models.values()
    return shown(model.requests[-1])  # type: ignore[attr-defined]
