"""The few histories that it takes to be everywhere once: at every boundary, in every state, with all policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlane.testing.matrix.builtin.aborts import ABORT_LEFT, ABORT_TOOLS
from agentlane.testing.matrix.builtin.asked import ASKED, DELIVERED, QUESTIONS
from agentlane.testing.matrix.builtin.bounds import REPLAYS
from agentlane.testing.matrix.builtin.changed import ASKED_AGAIN, INACTIVE, ONE_BY_ONE, PARALLEL
from agentlane.testing.matrix.builtin.children import FAMILY
from agentlane.testing.matrix.builtin.compacting import HOOKED, INTERRUPTED, LEFT, TWICE
from agentlane.testing.matrix.builtin.history import RENAMED, REWOUND
from agentlane.testing.matrix.builtin.hooks import CALLS_WITH_HOOKS, RUN_WITH_HOOKS
from agentlane.testing.matrix.builtin.imports import IMPORTED
from agentlane.testing.matrix.builtin.inbox import EVERYTHING
from agentlane.testing.matrix.builtin.limited import RETRIED
from agentlane.testing.matrix.builtin.outputs import CORRECTED
from agentlane.testing.matrix.builtin.plain import BAD_CALLS, MEMO, RETRY, SLOTS, STREAM
from agentlane.testing.matrix.builtin.writes import APPLICATION
from agentlane.testing.matrix.report import CrashReport
from agentlane.testing.matrix.runner import Depth, crash_matrix
from agentlane.testing.matrix.scenario import Scenario

_PARTS = ("before", "inside", "after")

_STOPS: tuple[tuple[Scenario[Any], str, str, tuple[str, ...]], ...] = (
    (RETRY, "memory", "kill@commit.settlement.{}#1", ("after",)),
    (CALLS_WITH_HOOKS, "memory", "kill@effect.hook.{}#1", ("start", "end")),
    (RUN_WITH_HOOKS, "memory", "kill@commit.follow_up.{}#1", _PARTS),
    (IMPORTED, "memory", "kill@commit.import_entries.{}#1", _PARTS),
    (IMPORTED, "memory", "kill@commit.import.{}#1", _PARTS),
    (EVERYTHING, "memory", "kill@commit.queue.{}#3", _PARTS),
    (EVERYTHING, "memory", "kill@commit.cancel_queued.{}#1", _PARTS),
    (EVERYTHING, "memory", "kill@commit.outcome_placed+placement+intent.{}#1", _PARTS),
    (REPLAYS, "memory", "kill@effect.tool.end#1 / kill@commit.replay_intent.{}#1", _PARTS),
    (REPLAYS, "memory", "kill@effect.model.start#1 / kill@commit.recovered_response.{}#1", _PARTS),
    (ABORT_TOOLS, "memory", "kill@commit.abort.{}#1", _PARTS),
    (RETRIED, "memory", "kill@commit.retry.{}#1", _PARTS),
    (CORRECTED, "memory", "kill@commit.settlement+correction+intent.{}#1", _PARTS),
    (INACTIVE, "memory", "kill@effect.tool.end#1 / kill@commit.configure.{}#1", _PARTS),
    (TWICE, "memory", "kill@commit.summary_failed.{}#1", _PARTS),
    (TWICE, "memory", "kill@commit.summary+terminal.{}#1", _PARTS),
    (TWICE, "memory", "kill@commit.summary_intent.{}#2", _PARTS),
    (TWICE, "memory", "kill@effect.summary.{}#1", ("start", "end")),
    (INTERRUPTED, "memory", "kill@effect.summary.start#1 / kill@commit.recovered_summary.{}#1", _PARTS),
    (HOOKED, "memory", "kill@commit.summary_refused+terminal.{}#1", _PARTS),
    (LEFT, "memory", "kill@commit.navigation+terminal.{}#1", _PARTS),
    (
        TWICE,
        "memory",
        "abort@{}, kill@commit.abort.after#1",
        ("commit.accept.after#2", "commit.summary_intent.after#1", "commit.summary_failed.after#1"),
    ),
    (HOOKED, "memory", "abort@effect.hook.start#{}, kill@commit.abort.after#1", ("2",)),
    (LEFT, "memory", "abort@effect.hook.start#{}, kill@commit.abort.after#1", ("2",)),
    (SLOTS, "late", "close@commit.settlement+tool_intents.before#1, kill@commit.close.{}#1", _PARTS),
    (
        ABORT_LEFT,
        "memory",
        "{} / kill@commit.abort.after#1",
        (
            "kill@commit.accept.after#1",
            "kill@effect.model.start#1",
            "kill@commit.settlement.after#1",
            "kill@effect.tool.start#1",
            "kill@commit.outcome_placed+intent.after#1",
            "close@effect.tool.start#1",
        ),
    ),
)


async def reach_everywhere() -> CrashReport:
    """Kill at every boundary that the library has, and leave an operation in each of its states."""
    report = CrashReport()
    for scenario in (BAD_CALLS, MEMO, STREAM, APPLICATION, REWOUND, RENAMED, ASKED, DELIVERED, QUESTIONS, FAMILY):
        report.merge(await crash_matrix(scenario, stores=["memory"], ways=["kill"], depth=Depth(again=0)))
    for scenario, store, text, places in _STOPS:
        report.merge(await crash_matrix(scenario, stores=[store], only=[text.format(place) for place in places]))
    return report


async def reach_pairs_in_parallel() -> CrashReport:
    """Each pair of stored and current policy, of calls beside each other, and again with an abort committed."""
    return await _pairs(PARALLEL, ["commit.settlement+tool_intents.after#1", "effect.tool.start#4"])


async def reach_pairs_one_by_one() -> CrashReport:
    """The same of calls that run one after the other."""
    placed = "commit.outcome_placed+tool_intents.after"
    return await _pairs(ONE_BY_ONE, ["commit.settlement+tool_intents.after#1", f"{placed}#1", f"{placed}#2"])


async def reach_pairs_that_ask() -> CrashReport:
    """Each policy of now of calls that a person must allow to run again."""
    return await _pairs(ASKED_AGAIN, ["commit.settlement+tool_intents.after#1", "effect.tool.start#2"])


async def _pairs(scenarios: Sequence[Scenario[Any]], places: Sequence[str]) -> CrashReport:
    report = CrashReport()
    texts = [text for place in places for text in (f"kill@{place}", f"abort@{place}, kill@commit.abort.after#1")]
    for scenario in scenarios:
        report.merge(await crash_matrix(scenario, stores=["memory"], only=texts))
    return report
